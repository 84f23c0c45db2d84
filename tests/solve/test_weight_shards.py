"""Megatron-LM's weight shards (GTP): their bytes and collectives by hand, and that nobody gets them unasked.

Of Megatron-LM main, docs/api-guide/core/generalized_tensor_parallel.md: section 1.3 has the volumes, 3.1 the buffers,
3.2 what data-parallel ranks reduce. tests/verify/test_megatron_rank.py has such ranks as Megatron-LM builds them.
"""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InputError
from symconfig.graph.derived import Phase
from symconfig.graph.scheme import Scheme
from symconfig.plans.plan import Plan
from symconfig.solve.costed import costed
from symconfig.solve.estimate import Estimate, estimate
from symconfig.solve.predict import restore
from symconfig.solve.search import search
from tests.graph.support import block, chosen, numbers
from tests.sample_models import sample_model
from tests.solve.naive import job, tight, tiny

H, FFN, VOCAB, LAYERS = 5120, 13824, 32000, 40
# Of Llama 2 13B: queries, keys and values; output; gate and up; down. Tables: look-up and head. Norms: two a layer.
MATRICES = (3 * H * H, H * H, 2 * H * FFN, FFN * H)
LINEAR, NORMS = LAYERS * sum(MATRICES) + 2 * VOCAB * H, (2 * LAYERS + 1) * H
TP, DP = 2, 8


def estimated(gtp: int, cluster: ClusterDescriptor | None = None, **pins: str) -> Estimate:
    asked = {"tp": str(TP), "zero": "1", "gtp": str(gtp), **pins}
    wanted = job(TP * DP, 64, 4096, pins=asked, allow=())
    return estimate(load_model("llama2-13b"), cluster or load_cluster("h100"), wanted)


@pytest.mark.parametrize("gtp", [1, 2, 4, 8])
def test_states_are_those_of_shards(gtp: int) -> None:
    """All but norms are cut by gtp, too; the optimizer's state of both over the dp / gtp replicas."""
    held = LINEAR / (TP * gtp) + NORMS
    memory = estimated(gtp).memory
    assert memory["weights"] == pytest.approx((2 * held,))
    assert memory["gradients"] == pytest.approx((4 * held,))
    assert memory["optimizer state"] == pytest.approx((12 * held / (DP / gtp),))


@pytest.mark.parametrize(("dtype", "width"), [("fp32", 4), ("bf16", 2)])
def test_gathered_weights_and_whole_gradients_have_buffers(dtype: str, width: int) -> None:
    """One of each size: the weight in bf16, its gradient as it is accumulated, and the reduced part of that."""
    gtp, sizes = 4, [size / TP for size in (*MATRICES, VOCAB * H)]
    more = sum((2 + width) * size + width * size / gtp for size in sizes)
    with_, without = (estimated(each, grad_dtype=dtype).memory["working set"][0] for each in (gtp, 1))
    assert with_ - without == pytest.approx(more)


def test_a_layer_gathers_twice_and_reduces_once_with_each_microbatch() -> None:
    values = numbers(sample_model("llama2-13b"), tp=TP) | {"gtp": 4}
    layer = block(sample_model("llama2-13b"), "dense", Scheme(True, weight_shards=True))
    for kind, phase in (
        ("all-gather", Phase.FORWARD),
        ("all-gather", Phase.INPUT),
        ("reduce-scatter", Phase.WEIGHT),
    ):
        found = [c.elements.value(values) for c in chosen(layer, "gtp", phase) if c.kind.value == kind]
        assert sorted(found) == sorted(size / TP for size in MATRICES)
    assert len(chosen(layer, "gtp")) == 3 * len(MATRICES)
    # What a layer gathers runs beside the linear layer before it in the forward, and after it in the backward.
    beside = {(c.owner, c.phase): c.behind for c in chosen(layer, "gtp")}
    assert beside["o_proj", Phase.FORWARD] == ("qkv_proj", Phase.FORWARD)
    assert beside["o_proj", Phase.INPUT] == ("gate_up_proj", Phase.INPUT)
    assert beside["qkv_proj", Phase.WEIGHT] == ("down_proj", Phase.WEIGHT)
    assert not chosen(block(sample_model("llama2-13b"), "dense", Scheme(True)), "gtp")


def test_seconds_are_those_of_rings_over_neighbours_of_tp() -> None:
    """gtp 4 beside tp 2 is one node of eight GPUs: a ring's seconds are its latencies and 3/4 of the bytes."""
    plan = estimated(4).plan
    parts = costed(restore(plan, plan.best))
    layer = next(each for each in parts.table.blocks if each.derived.name == "dense")
    node, levels = parts.setting.machine.levels, load_cluster("h100").levels
    found = {
        (c.owner, c.phase): float(t[0])
        for c, t in zip(layer.derived.collectives, layer.full_comm_s, strict=True)
        if c.axes == ("gtp",)
    }
    assert levels[0].size == 8
    for owner, size in zip(("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), MATRICES, strict=True):
        gathered, reduced = found[owner, Phase.FORWARD], found[owner, Phase.WEIGHT]
        assert found[owner, Phase.INPUT] == gathered
        assert reduced - gathered == pytest.approx(3 / 4 * 2 * size / TP / node["level0_bytes_per_s"], rel=1e-6)


def test_experts_routers_and_low_rank_projections_stay_whole() -> None:
    """Experts have an axis of their own; the others are no column- or row-parallel layers (section 3.1)."""
    for name, whole in (
        ("mixtral-8x7b", {"router.weight", "expert_gate_up_proj.weight", "expert_down_proj.weight"}),
        ("deepseek-v3", {"q_down_proj.weight", "kv_down_proj.weight", "router.weight"}),
    ):
        layer = block(sample_model(name), "moe", Scheme(True, weight_shards=True))
        cut = {shard.name for shard in layer.weights if shard.gathered is not None}
        assert cut.isdisjoint(whole)
        assert {"o_proj.weight"} <= cut < {shard.name for shard in layer.weights}


def test_ranks_of_shards_are_data_parallel_and_must_divide_them() -> None:
    for gtp in ("3", "16"):
        with pytest.raises(InputError, match=f"dp 8 ranks cannot be divided by gtp {gtp}"):
            estimated(int(gtp))
    assert estimated(2).plan.best.configuration.num_microbatches == 64 // DP
    assert [sentence[-14:] for sentence in estimated(2, precision="fp8").refused] == ["are not priced"]


def planned(gib: float, **fields: Any) -> Plan:
    return search(tiny("llama2-13b"), tight(tiny("llama2-13b"), gib), job(8, 16, **{"allow": ()} | fields))


def test_a_search_has_them_only_where_they_are_allowed() -> None:
    """They are not opened by themselves, however little fits; a pin asks for them."""
    for gib in (2.0, 0.6):
        shown = planned(gib)
        assert {each.configuration.gtp for each in shown.ranked} == {1}
    asked = planned(2.0, pins={"gtp": "2"})
    assert [(one.name, one.pinned) for one in asked.search.opened] == [("gtp", True)]
    least = planned(2.0, allow=("gtp",)).search
    assert least.candidates > planned(2.0).search.candidates
