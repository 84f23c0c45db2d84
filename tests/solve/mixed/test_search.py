"""Plans over two kinds of GPUs: against all layouts in both orders, against one kind, and against each one's memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, pairwise, permutations

import numpy as np
import pytest

from symconfig.descriptor.cluster import MixedCluster
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_mixed, load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError
from symconfig.graph.model import sequence
from symconfig.plans.configuration import Configuration
from symconfig.solve import search as one_kind
from symconfig.solve.costed import costed
from symconfig.solve.mixed.across import Across
from symconfig.solve.mixed.search import mean, pipelines, search
from symconfig.solve.split import plainest
from symconfig.solve.stages import cut

LLAMA = load_model("llama2-13b")


def mixed(name: str) -> MixedCluster:
    found = load_mixed(name)
    assert found is not None
    return found


def job(cluster: MixedCluster, model: ModelDescriptor = LLAMA, batch: int = 128, **pins: str) -> Job:
    return Job(model=model.name, cluster=cluster.name, gpus=cluster.gpus, global_batch_size=batch, pins=pins)


def layers(across: Across) -> list[int]:
    """Return how many layers each stage has."""
    return [sum(kind not in ("embedding", "head") for chunk in across.split.stage(i) for kind in chunk)
            for i in range(across.pp)]  # fmt: skip


def test_stages_that_are_whole_on_either_kind() -> None:
    assert pipelines(mixed("h100*16 + a100-80gb*16")) == [2, 4, 8, 16, 32]
    assert pipelines(mixed("h100*16 + a100-80gb*32")) == [3, 6, 12, 24, 48]


def test_two_names_of_one_gpu_give_the_plan_of_one_cluster() -> None:
    cluster, pins = mixed("h100*16 + h100*16"), {"pp": "4", "tp": "2", "recompute": "none"}
    found = search(LLAMA, cluster, job(cluster, **pins)).ranked[0]
    alone = Job(model=LLAMA.name, cluster="h100", gpus=32, global_batch_size=128, pins=pins)
    best = one_kind.search(LLAMA, cluster.shares[0].cluster, alone, top=1).fastest
    assert found.candidates[0].configuration == best.configuration
    assert found.step_s == pytest.approx(best.predicted.step_s, rel=1e-9)


SMALL = load_model("llama3.2-1b").model_copy(update={"num_hidden_layers": 6})
# What is left open: tensor and data parallel ranks, stages, the order of the kinds, and the layers of each stage.
OPEN = {"mbs": "1", "vpp": "1", "recompute": "none", "zero": "1", "cp": "1", "pp": "..4", "grad_dtype": "fp32",
        "fused_loss": "off", "user_buffers": "off", "cuda_graphs": "none"}  # fmt: skip


def test_no_layout_of_any_degrees_in_either_order_is_faster() -> None:
    cluster = mixed("h100 with gpus_per_node=4*4 + a100-80gb with gpus_per_node=4*4 over 100Gb/s")
    mix = search(SMALL, cluster, job(cluster, SMALL, 64, **OPEN))
    best = mix.ranked[0]
    like = {across.candidates[0].configuration.tp > 1: across for across in mix.ranked}
    steps = {
        (tp, pp): every_layout_s(
            like[tp > 1], replace(best.candidates[0].configuration, tp=tp, pp=pp, dp=8 // (tp * pp))
        )
        for tp, pp in ((1, 2), (2, 2), (4, 2), (1, 4), (2, 4))
    }
    degrees = best.candidates[0].configuration
    assert steps[degrees.tp, degrees.pp] == min(steps.values())
    assert best.step_s == pytest.approx(min(steps.values()), rel=1e-9)


def every_layout_s(like: Across, degrees: Configuration) -> float:
    """Return the fastest step of the degrees, of all layers over their stages in both orders of the kinds."""
    candidates = [replace(found, configuration=degrees) for found in like.candidates]
    layouts, best = candidates[0].request.limits.layouts, float("inf")
    for one, other in permutations(candidates):
        for borders in combinations_with_replacement(range(SMALL.num_hidden_layers + 1), degrees.pp - 1):
            sizes = [b - a for a, b in pairwise((0, *borders, SMALL.num_hidden_layers))]
            split = plainest(degrees.pp, cut(sequence(SMALL), sizes), layouts)
            if split is not None:
                across = Across((one, other), degrees.pp // 2, like.border).laid(split, 0)
                best = min(best, across.step_s if across.fits else best)
    return best


def test_memory_is_judged_by_each_kind() -> None:
    large, small = mixed("h100*8 + a100-80gb*8"), mixed("h100*8 + a100-40gb*8")
    for cluster in (large, small):
        across = search(LLAMA, cluster, job(cluster, tp="2", pp="2")).ranked[0]
        for stage, kind in enumerate(across.kinds):
            limit = cluster.shares[across.order[kind]].cluster.gpu.memory_bytes.value
            assert across.peaks[stage] < 0.96 * limit


def test_no_stages_that_fit_are_said() -> None:
    cluster, model = mixed("h100*8 + v100-16gb*8"), load_model("llama3.1-70b")
    asked = job(cluster, model, 8, tp="1", pp="2", recompute="none")
    with pytest.raises(InfeasibleError, match="fits in the memory of both kinds"):
        search(model, cluster, asked)


def test_with_ample_memory_layers_go_by_speed() -> None:
    """Whale balances work by FLOP/s: stages of a kind k times as fast hold k times the layers."""
    cluster = mixed("h100 with gpu_memory=900GiB*8 + a100-80gb with gpu_memory=900GiB*8")
    model = LLAMA.model_copy(update={"num_hidden_layers": 80, "vocab_size": 1024})
    across = search(model, cluster, job(cluster, model, 512, tp="1", pp="4", vpp="1", mbs="1")).ranked[0]
    seconds = [float(parts.table.seconds[0, parts.table.kinds.index("dense"), 0]) for parts in across.parts]
    speeds = np.array([1 / seconds[kind] for kind in across.kinds])
    assert np.abs(np.array(layers(across)) - 80 * speeds / speeds.sum()).max() <= 1.0


def test_a_machine_of_mean_rates_does_as_much_as_both() -> None:
    cluster = mixed("h100*8 + a100-80gb*8")
    across = search(LLAMA, cluster, job(cluster, tp="1", pp="2", vpp="1", mbs="1")).ranked[0]
    one, other = across.candidates
    same = mean([one.machine, one.machine], [8, 8])
    assert same == one.machine
    both = mean([one.machine, other.machine], [8, 8])
    seconds = [
        float(costed(replace(one, machine=gpu)).table.seconds[0].sum()) for gpu in (one.machine, other.machine, both)
    ]
    together = 2 / (1 / seconds[0] + 1 / seconds[1])
    assert seconds[2] == pytest.approx(together, rel=0.05)
