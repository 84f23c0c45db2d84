"""Tokens travel to their experts and back: B S k D elements each way (GShard, arXiv 2006.16668, section 3.2)."""

from __future__ import annotations

from collections import Counter

import pytest

from symconfig.graph.blocks.mlp import BIAS_LAUNCHES, COMBINE_LAUNCHES, ROUTE_LAUNCHES
from symconfig.graph.derived import Phase, Traffic
from symconfig.graph.operator import Element
from tests.graph.support import SEQUENCE, block, chosen, numbers
from tests.sample_models import sample_model

S, B = 2048, 3


def test_a_shared_expert_is_cut_by_tp_like_any_mlp() -> None:
    model = sample_model("deepseek-v3")
    derived = block(model, "moe", SEQUENCE)
    values = numbers(model, tp=4)
    shards = {w.name: w.elements.value(values) for w in derived.weights}
    assert shards["shared_down_proj.weight"] == 2048 * 7168 / 4
    shared = ("mlp_norm", "shared_mlp_out")
    kinds = Counter(str(c.kind) for c in chosen(derived, "tp", Phase.FORWARD) if c.tensor in shared)
    assert kinds == Counter({"all-gather": 1, "reduce-scatter": 1})


def operators(name: str, **how: object) -> set[str]:
    return {work.op for work in block(sample_model(name), "moe", **how).work}


def test_slots_are_sorted_after_an_all_to_all_and_filled_from_what_comes_once() -> None:
    """On arrival and on the way back, forward and backward, beside tokens and slots once: sorting reads and writes all
    slots once more, and filling reads nearly as much as it writes. Expert-tensor ranks have all slots of theirs."""
    model = sample_model("qwen3-30b-a3b")
    slots, tokens = S * 8 * 2048, S * 2048

    def moved(dispatcher: str, etp: int) -> float:
        values = numbers(model, seq_length=S, ep=8, dp=8, etp=etp)
        work = block(model, "moe", dispatcher=dispatcher).work
        mine = [w for w in work if isinstance(w, Traffic) and w.op in ("dispatch", "combine")]
        activations = [m for w in mine for m, element in w.moved if element is Element.ACTIVATION]
        return sum(m.value(values) for m in activations)

    for etp in (1, 4):
        assert moved("alltoall", etp) == pytest.approx(4 * (tokens + slots + 2 * etp * slots), rel=0.01)
        assert moved("deepep", etp) == pytest.approx(4 * (tokens + slots + etp * slots), rel=0.01)


def test_the_slots_of_one_expert_lie_in_order() -> None:
    """They need no sorting, and are filled none the less."""
    model = sample_model("qwen3-30b-a3b")
    alone = {
        dispatcher: {
            work.among for work in block(model, "moe", dispatcher=dispatcher).work if isinstance(work, Traffic)
        }
        for dispatcher in ("alltoall", "deepep")
    }
    assert alone["deepep"] == {None}
    (experts,) = alone["alltoall"] - {None}
    assert experts.value(numbers(model, ep=16, dp=16)) == 8


def test_limits_and_biases_of_experts_are_kernels_of_their_own_unless_fused() -> None:
    """gpt-oss: swiglu_limit and experts with biases; Qwen3 has neither."""
    own = {"expert_gate_clamp", "expert_up_clamp", "expert_bias"}
    assert own <= operators("gpt-oss-120b")
    assert not own & operators("gpt-oss-120b", fused_experts=True)
    assert not own & operators("qwen3-30b-a3b")


def test_the_host_runs_many_operators_around_the_experts_and_some_for_each_bias() -> None:
    model = sample_model("gpt-oss-120b")
    turns: Counter[tuple[str, Phase]] = Counter()
    for work in block(model, "moe").work:
        if isinstance(work, Traffic):
            turns[work.op, work.phase] += work.turns.value(numbers(model, ep=8, dp=8))
    for op, (forward, backward) in {"route": ROUTE_LAUNCHES, "combine": COMBINE_LAUNCHES}.items():
        assert (turns[op, Phase.FORWARD], turns[op, Phase.INPUT]) == (forward, backward)
    assert turns["expert_bias", Phase.FORWARD] == 16 * BIAS_LAUNCHES[0]
    assert turns["mlp_norm", Phase.FORWARD] == 1


def test_a_dense_layer_of_a_model_with_experts_keeps_no_slots() -> None:
    for kind, there in (("dense", False), ("moe", True)):
        derived = block(sample_model("deepseek-v3"), kind, SEQUENCE, routing="chain")
        assert any(held.tensor == "slot_probabilities" for held in derived.held) is there
