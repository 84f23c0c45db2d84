"""The list of kept tensors adds up to what the cost model sums."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.cost.pipeline import in_flight
from symconfig.plans.plan import Recompute
from symconfig.solve.costed import costed
from symconfig.verify.megatron_saved import saved
from symconfig.verify.rank_states import with_local_layers
from tests.sample_plans import sample_plan

FULL = Recompute("full", method="uniform", num_layers=1)
BLOCK = Recompute("full", method="block", num_layers=1)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("llama2-13b", {}),
    "biases and dropout": ("gpt3-175b", {}),
    "interleaved, context parallel": ("llama3.1-70b", {}),
    "experts": ("mixtral-8x7b", {}),
    "latent": ("deepseek-v3", {}),
    "windows and sinks": ("gpt-oss-120b", {}),
    "selective": ("mixtral-8x7b", {"recompute": Recompute("selective", modules=("core_attn", "layernorm", "moe_act"))}),
    "full": ("deepseek-v3", {"recompute": FULL}),
    "pairs of layers": ("llama3.1-70b", {"recompute": Recompute("full", method="uniform", num_layers=2)}),
    "threes of layers": ("deepseek-v3", {"recompute": Recompute("full", method="uniform", num_layers=3)}),
    "first layers": ("llama3.1-70b", {"recompute": BLOCK}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_list_adds_up_to_the_cost_models_activations(case: str) -> None:
    model, overrides = CASES[case]
    plan = sample_plan(model, **overrides)
    found = costed(with_local_layers(plan))
    flight = in_flight(found.points, found.setting)
    for stage in {0, 1, plan.best.parallel.pp - 1}:
        layers = found.cost.memory["activations"][stage].item() / flight[stage].item()
        expected = layers + found.cost.memory["head and loss"][stage].item()
        assert sum(t.bytes for t in saved(plan, stage)) == pytest.approx(expected, rel=1e-12)


def test_layers_are_counted_within_their_chunk() -> None:
    plan = sample_plan("llama3.1-70b", recompute=BLOCK)
    tensors = saved(plan, 0)
    chunks = plan.best.stages[0].chunks
    assert {t.chunk for t in tensors} == set(range(len(chunks)))
    for index, chunk in enumerate(chunks):
        layers = [t for t in tensors if t.chunk == index and t.block == "dense"]
        assert {t.layer for t in layers} == set(range(chunk.count("dense")))
        assert [t.tensor for t in layers if t.layer == 0] == ["layer_in"]  # the first one is recomputed
    assert [t.tensor for t in tensors if t.layer is None] == ["tokens"]


def test_multi_token_prediction_layers_are_counted_on_their_own() -> None:
    plan = sample_plan("deepseek-v3")
    last = saved(plan, plan.best.parallel.pp - 1)
    assert {t.layer for t in last if t.block == "mtp"} == {0}


def test_layers_recomputed_together_keep_the_first_ones_input_and_come_back_together() -> None:
    one, three = (
        sample_plan("llama2-13b", recompute=Recompute("full", method="uniform", num_layers=count)) for count in (1, 3)
    )
    layers = [t for t in saved(three, 0) if t.block == "dense"]
    assert [t.layer for t in layers] == list(range(0, 20, 3))
    assert {t.tensor for t in layers} == {"layer_in"}
    ours, theirs = (costed(with_local_layers(plan)) for plan in (three, one))
    back = [parts.cost.memory["working set"][0].item() for parts in (ours, theirs)]
    assert 1.5 < back[0] / back[1] < 3  # gradients and workspaces are those of one layer
