"""The nearest published recipe beside a plan: which it is, and what its layout and its split cost in the plan's job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.api.planning import plan as solved
from symconfig.descriptor.recipe import Recipe, RecipeFile, find_recipe
from symconfig.plans.beside import comparisons
from symconfig.plans.plan import Plan
from symconfig.plans.recipe import NearRecipe
from symconfig.runs.compared import compared, near_recipe, with_comparisons

TUNED = "mb-0.4.0-perf-llama3-70b-pretrain-h100-64gpu-bf16-v1"  # tp 4, pp 4, vpp 5, cp 2


def planned(**pins: int) -> Plan:
    return solved("llama3.1-70b", "h100", 64, 128, 8192, pins=pins, top=1).plan


def near(plan: Plan) -> NearRecipe:
    found = near_recipe(plan)
    assert found is not None
    return found


def stating(name: str, **options: object) -> tuple[RecipeFile, Recipe]:
    """Return a recipe that states other options, too."""
    file, recipe = find_recipe(name)
    return file, recipe.model_copy(update={"options": recipe.options.model_copy(update=options)})


def test_of_its_own_job_the_recipe_is_the_nearest() -> None:
    plan = planned(tp=8, pp=4, vpp=5, cp=2)
    found = near(plan)
    assert found.id == TUNED
    assert found.job == "llama3.1-70b on 64 x h100, batch 128, 8,192 tokens, bf16"
    assert plan.beside.recipe is None  # a plan is made without it
    assert with_comparisons(plan).beside.recipe == found
    assert "tp 4 for 8" in found.differences
    assert not [one for one in found.differences if one.startswith("pp ")]


def test_its_layout_and_its_split_cost_what_plans_with_these_pins_take() -> None:
    plan = planned(tp=8, pp=4, vpp=5, cp=2)
    free = replace(plan, job=plan.job.model_copy(update={"pins": {}}))
    file, recipe = find_recipe(TUNED)
    found = compared(free, file, recipe)
    assert found.layout is not None
    assert found.split is not None
    for priced, pins in (
        (found.layout, recipe.as_pins()),
        (found.split, {"tp": 4, "pp": 4, "cp": 2, "ep": 1, "etp": 1}),
    ):
        other = solved("llama3.1-70b", "h100", 64, 128, 8192, pins=pins, top=1).plan
        assert priced.words == "tp 4 pp 4 cp 2"
        assert priced.loss == pytest.approx(other.best.predicted.step_s / plan.best.predicted.step_s - 1, abs=1e-6)
    assert compared(planned(tp=4, pp=4, cp=2), file, recipe).split is None


def test_what_has_no_price_is_named_beside_what_has() -> None:
    plan = planned(tp=8, pp=4, vpp=5, cp=2)
    found = compared(plan, *stating(TUNED, own="DualPipe"))
    assert found.left_out == "DualPipe"
    said = "\n".join(comparisons(replace(plan, beside=replace(plan.beside, recipe=found))))
    assert "its layout, without its DualPipe, which has no price in the model, is " in said


def test_what_does_not_run_says_why() -> None:
    file, recipe = find_recipe(TUNED)
    three = recipe.model_copy(update={"layout": recipe.layout.model_copy(update={"tp": 3})})
    layout = compared(planned(tp=4, pp=4, vpp=5, cp=2), file, three).layout
    assert layout is not None
    assert layout.loss is None
    assert layout.why.startswith("cannot run: ") or layout.why == "has no plan that runs and fits"


def test_a_model_that_the_recipes_do_not_have_gets_one_of_its_kind() -> None:
    plan = solved("llama2-70b", "h100", 64, 128, 4096, top=1).plan
    assert "llama3.1-70b" in near(plan).job
    experts = solved("mixtral-8x7b", "h100", 64, 256, 4096, top=1).plan
    assert "mixtral-8x7b" in near(experts).job


def test_other_frameworks_have_none() -> None:
    plan = solved("llama2-7b", "a100-80gb", 8, 64, 4096, backend="deepspeed", top=1).plan
    assert with_comparisons(plan).beside.recipe is None


def test_what_the_job_does_not_allow_is_named() -> None:
    found = compared(planned(tp=4, pp=4, vpp=4, cp=2), *stating(TUNED, gradients="bf16"))
    assert found.layout is not None
    assert found.layout.opens == ("bf16_gradients",)
