"""Which stage has which parameters, where it is not where the plan's blocks are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.plans.plan import Plan, Stage
from symconfig.verify.states.inventory import chunk_parameters
from tests.sample_models import sample_model
from tests.sample_plans import sample_plan

TABLE, HEAD, NORM = "word_embedding.weight", "lm_head.weight", "final_norm.weight"


def two_stages(version: str = "core_v0.19.0", tied: bool = False) -> Plan:
    """Four layers on the first stage, multi-token prediction and the loss on the last."""
    model = sample_model("deepseek-v3", num_hidden_layers=4, tie_word_embeddings=tied)
    plan = sample_plan(model, tp=2, pp=2, dp=8, ep=4, version=version, pipeline_layout="Etttt|mL")
    kinds = (("embedding", *model.layer_kinds), ("mtp", "head"))
    return replace(plan, best=replace(plan.best, stages=tuple(Stage((chunk,), "none", 0.0) for chunk in kinds)))


def ends(plan: Plan, stage: int) -> dict[str, bool]:
    """Those of no layer, and whether another stage has them, too."""
    return {
        item.name: item.copied
        for chunk in chunk_parameters(plan, stage)
        for item in chunk
        if "." in item.name and item.layer is None and not item.name.startswith("mtp")
    }


@pytest.mark.parametrize(("version", "first"), [("core_v0.15.0", False), ("core_v0.19.0", True)])
def test_the_final_norm_moved_behind_the_last_layer(version: str, first: bool) -> None:
    plan = two_stages(version)
    assert [NORM in ends(plan, stage) for stage in (0, 1)] == [first, not first]


def test_what_predicts_further_tokens_has_a_table_of_its_own() -> None:
    assert ends(two_stages(), 0) == {TABLE: True, NORM: False}
    assert ends(two_stages(), 1) == {TABLE: True, HEAD: False}
    assert ends(two_stages(tied=True), 1) == {TABLE: True, HEAD: False}  # though the head uses the table


def test_a_tied_head_is_on_the_last_stage_once_more() -> None:
    expected = {1: ({TABLE: False, NORM: False},) * 2, 2: ({TABLE: True}, {NORM: False, HEAD: True})}
    for pp, (first, last) in expected.items():
        plan = sample_plan(sample_model("qwen2.5-7b", tie_word_embeddings=True), tp=2, pp=pp, dp=4)
        assert ends(plan, 0) == first
        assert ends(plan, pp - 1) == last


def test_the_order_is_that_of_the_modules() -> None:
    """Of Megatron's own layers every norm comes first; Transformer Engine's take it in before the product."""
    plan = sample_plan("mixtral-8x7b", tp=1, pp=1, ep=4, dp=8)
    (local,), (engine,) = (chunk_parameters(plan, 0, how) for how in ("local", "transformer_engine"))
    names = [item.name.removeprefix("layers.0.") for item in local if item.layer == 0]
    assert names == [
        "input_norm.weight",
        "o_proj.weight",
        "qkv_proj.weight",
        "mlp_norm.weight",
        "router.weight",
        "expert_gate_up_proj.weight.0",
        "expert_down_proj.weight.0",
        "expert_gate_up_proj.weight.1",
        "expert_down_proj.weight.1",
    ]
    names = [item.name.removeprefix("layers.0.") for item in engine if item.layer == 0]
    assert names == [
        "o_proj.weight",
        "input_norm.weight",
        "qkv_proj.weight",
        "mlp_norm.weight",
        "router.weight",
        "expert_gate_up_proj.weight.0",
        "expert_gate_up_proj.weight.1",
        "expert_down_proj.weight.0",
        "expert_down_proj.weight.1",
    ]
