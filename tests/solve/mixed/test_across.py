"""A candidate over two kinds: against the homogeneous one, and against a pipeline whose later stages are slowed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from symconfig.cost.lattice import Array
from symconfig.cost.machine import Machine
from symconfig.cost.pipeline import messages
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.schedule.timeline import Times
from symconfig.solve.costed import Costed, costed, refined_s, refined_time, timeline, times
from symconfig.solve.mixed.across import Across
from symconfig.solve.pieces import WHOLE
from symconfig.solve.prospect import Prospect, recomputing
from symconfig.solve.run import weigh_all
from symconfig.solve.search import resolved

MODEL, CLUSTER = load_model("llama2-13b"), load_cluster("h100")


def stage_seconds(parts: Costed, made: Times) -> Array:
    """Return seconds of a microbatch's passes on each stage, with recompute and waits for messages, [pp]."""
    sums = parts.sums
    received = messages(sums, parts.points, parts.setting).received_s[:, 0]
    repeated: Array = made.recompute.sum(axis=1) - sums.rerun[:, 0, 0]  # of the first layers of every chunk
    return sums.seconds[:, 0, 0] + received + repeated


def found(model: ModelDescriptor = MODEL, **pins: str) -> Prospect:
    """Return the best weighed candidate of a job with these pins."""
    fields = {"model": model.name, "cluster": "h100", "gpus": 32, "global_batch_size": 128, "precision": "bf16"}
    job = Job(**fields, allow=("all",), pins=pins)
    return weigh_all(model, CLUSTER, resolved(model, CLUSTER, job), 1).best[0]


CASES = [
    {"pp": "4", "vpp": "1", "tp": "2"},
    {"pp": "2", "vpp": "1", "zero": "0"},
    {"pp": "4", "vpp": "2", "tp": "1"},
    {"pp": "4", "vpp": "1", "tp": "2", "recompute": "full", "mbs": "2"},
    {"pp": "4", "vpp": "4", "ep": "8", "tp": "1", "moe_overlap": "on", "recompute": "none"},
]


@pytest.mark.parametrize("pins", CASES)
def test_two_names_of_one_gpu_are_that_gpu(pins: dict[str, str]) -> None:
    model = load_model("mixtral-8x7b") if "ep" in pins else MODEL
    one = found(model, **pins)
    parts, across = costed(one), Across((one, one), one.configuration.pp // 2, one.machine)
    assert across.step_s == pytest.approx(refined_s(one, parts), rel=1e-12)
    assert across.peaks == parts.peaks
    assert across.stage_s == pytest.approx(stage_seconds(parts, times(one, parts)), rel=1e-9)
    assert across.time == pytest.approx(refined_time(one, parts), rel=1e-6, abs=1e-9)
    assert sum(across.time.values()) == pytest.approx(across.step_s, rel=1e-12)


@pytest.mark.parametrize("vpp", ["1", "2"])
def test_no_layer_is_recomputed_for_none_and_every_one_for_all(vpp: str) -> None:
    """Of a candidate that recomputes first layers, the number decides, whatever it was before."""
    one = found(pp="4", vpp=vpp, tp="2", recompute="full")
    longest = one.split.longest_chunk
    block = one.having(**recomputing(WHOLE, 1))
    across = [Across((block, block), 2, block.machine).laid(one.split, first) for first in range(longest + 2)]
    seconds = [float(each.times.recompute.sum()) for each in across]
    assert seconds[0] == 0.0
    assert all(a < b for a, b in pairwise(seconds[: longest + 1]))
    assert seconds[longest:] == [float(times(one, costed(one)).recompute.sum())] * 2
    for each in across:
        c = each.candidates[0].configuration
        assert (c.recompute_method == "block") == (0 < each.candidates[0].block_layers < longest)


def slower(machine: Machine, times_: float) -> Machine:
    """Return a machine that takes so many times as long for its own work, with the same links."""
    rates = ("peak_flops", "high_peak_flops", "hbm_bytes_per_s", "attention_flops", "attention_backward_flops")
    changed = {name: getattr(machine, name) / times_ for name in rates}
    return replace(machine, **changed, launch_s=machine.launch_s * times_, launching=machine.launching * times_)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_slower_kind_is_a_pipeline_with_slowed_stages(ahead: int) -> None:
    one = found(pp="4", vpp="1", tp="1", zero="0")
    other = replace(one, machine=slower(one.machine, 1.7))
    across = Across((one, other), ahead, one.machine)
    slow, made = np.where(np.arange(4) >= ahead, 1.7, 1.0)[:, None], times(one, costed(one))
    work = {name: getattr(made, name) * slow for name in ("forward", "recompute", "backward", "weight")}
    expected = timeline(one, costed(one), replace(made, **work)).step_s
    assert timeline(across.candidates[0], across.parts[0], across.times).step_s == pytest.approx(expected, rel=2e-3)


def test_what_passes_between_the_kinds_takes_as_long_as_the_network_between_them() -> None:
    one = found(pp="4", vpp="1", tp="2")
    levels = {
        name: value / 100 if name.endswith("bytes_per_s") else value for name, value in one.machine.levels.items()
    }
    border = replace(one.machine, levels=levels)
    across = Across((one, one), 2, border)
    own, _, between = across.links_s
    assert between > 50 * own
    into, back = across.arrivals_s
    assert into[:, 0].tolist() == [0.0, own, between, own]
    assert back[:, 0].tolist() == [own, between, own, 0.0]
    assert across.step_s > Across((one, one), 2, one.machine).step_s
