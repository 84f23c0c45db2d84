"""Tokens travel to their experts and back: B S k D elements each way (GShard, arXiv 2006.16668, section 3.2)."""

from __future__ import annotations

from collections import Counter

import pytest

from symconfig.graph.blocks.experts import BIAS_LAUNCHES, COMBINE_LAUNCHES, ROUTE_LAUNCHES
from symconfig.graph.derived import Matmul, Phase, Traffic
from symconfig.graph.operator import Element
from tests.graph.support import SEQUENCE, block, chosen, numbers, tally
from tests.sample_models import sample_model

# B x S tokens a data rank; k choices; D: num_experts_per_tok and hidden_size of the models' config.json.
MODELS = {"mixtral-8x7b": (2, 4096), "qwen3-30b-a3b": (8, 2048), "deepseek-v3": (8, 7168), "gpt-oss-120b": (4, 2880)}
S, B = 2048, 3


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.INPUT])
def test_all_to_all_twice_each_way(name: str, phase: Phase) -> None:
    choices, hidden = MODELS[name]
    derived = block(sample_model(name), "moe", SEQUENCE)
    values = numbers(sample_model(name), seq_length=S, micro_batch=B, ep=4, dp=4)
    assert tally(chosen(derived, "ep", phase), values) == Counter({("all-to-all", float(B * S * choices * hidden)): 2})


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.INPUT])
def test_tokens_of_tp_and_cp_ranks_are_different_ones(phase: Phase) -> None:
    """With sequence parallelism each rank of tp x cp sends its own tokens only (MoEAlltoAllTokenDispatcher)."""
    model = sample_model("mixtral-8x7b")
    derived = block(model, "moe", SEQUENCE)
    values = numbers(model, seq_length=S, tp=2, cp=4, ep=8)
    assert tally(chosen(derived, "ep", phase), values) == Counter({("all-to-all", S / 8 * 2 * 4096): 2})


@pytest.mark.parametrize("imbalance", [1.0, 1.5])
def test_the_busiest_rank_sends_what_the_imbalance_says(imbalance: float) -> None:
    model = sample_model("mixtral-8x7b")
    derived = block(model, "moe", SEQUENCE)
    values = {**numbers(model, ep=8, dp=8), "expert_imbalance": imbalance}
    for c in chosen(derived, "ep"):
        assert c.elements.value(values) == imbalance * 2048 * 2 * 4096


def test_volume_does_not_change_with_dp_or_ep() -> None:
    model = sample_model("qwen3-30b-a3b")
    derived = block(model, "moe", SEQUENCE)
    sizes = [
        [c.elements.value(numbers(model, dp=dp, ep=ep)) for c in chosen(derived, "ep")]
        for dp, ep in ((8, 8), (64, 8), (8, 2), (64, 64))
    ]
    assert sizes[0] == sizes[1] == sizes[2] == sizes[3]


def test_tensor_parallelism_inside_an_expert_gathers_and_scatters() -> None:
    """Megatron's dispatcher: all-to-all over ep, all-gather over etp; reduce-scatter and all-to-all on the way back."""
    model = sample_model("mixtral-8x7b")
    derived = block(model, "moe", SEQUENCE)
    values = numbers(model, seq_length=S, tp=2, etp=2, ep=2, dp=2)
    gathered = 2 * (S / 2) * 2 * 4096  # two ranks' slots
    forward, backward = (tally(chosen(derived, "etp", phase), values) for phase in (Phase.FORWARD, Phase.INPUT))
    assert forward == Counter({("all-gather", gathered): 1, ("reduce-scatter", gathered): 1})
    assert backward == forward
    order = [str(c.kind) for c in derived.collectives if c.tensor == "expert_in" and c.phase is Phase.FORWARD]
    assert order == ["all-to-all", "all-gather"]
    order = [str(c.kind) for c in derived.collectives if c.tensor == "expert_mlp_out" and c.phase is Phase.FORWARD]
    assert order == ["reduce-scatter", "all-to-all"]


def test_experts_are_cut_by_ep_and_etp_and_replicated_over_the_expert_grid() -> None:
    model = sample_model("mixtral-8x7b")
    values = numbers(model, tp=2, cp=2, dp=8, ep=4, etp=2)
    shards = {w.name: w for w in block(model, "moe", SEQUENCE).weights}
    down = shards["expert_down_proj.weight"]
    assert down.expert
    assert down.elements.value(values) == 8 * 14336 * 4096 / (4 * 2)
    assert down.data_axes == ("edp",)
    assert shards["router.weight"].elements.value(values) == 4096 * 8
    assert not shards["router.weight"].expert


def test_a_rank_keeps_its_slots_whatever_ep_is() -> None:
    """Each token has k slots somewhere: the mean rank keeps k inputs a token, dropless and balanced."""
    model = sample_model("mixtral-8x7b")
    (held,) = [h for h in block(model, "moe", SEQUENCE).held if h.tensor == "expert_in"]
    for ep in (1, 2, 8):
        assert held.elements.value(numbers(model, ep=ep, dp=8)) == 2048 * 2 * 4096


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
    assert experts is not None
    assert experts.value(numbers(model, ep=16, dp=16)) == 8


def test_limits_and_biases_of_experts_are_kernels_of_their_own_unless_fused() -> None:
    """gpt-oss: swiglu_limit and experts with biases; Qwen3 has neither."""
    own = {"expert_gate_clamp", "expert_up_clamp", "expert_bias"}
    assert own <= operators("gpt-oss-120b")
    assert not own & operators("gpt-oss-120b", fused_experts=True)
    assert not own & operators("qwen3-30b-a3b")


@pytest.mark.parametrize(("ep", "turns"), [(1, 128), (8, 16), (128, 1)])
def test_the_host_launches_the_products_of_each_expert(ep: int, turns: int) -> None:
    model = sample_model("qwen3-30b-a3b")
    found = {
        fused: {
            work.turns.value(numbers(model, ep=ep, dp=ep))
            for work in block(model, "moe", fused_experts=fused).work
            if isinstance(work, Matmul) and work.op.startswith("expert_")
        }
        for fused in (False, True)
    }
    assert found == {False: {turns}, True: {1}}


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
