"""The nearest published recipe beside a plan: which it is, and what each of its differences costs."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from symconfig.api.planning import plan as solved
from symconfig.descriptor.recipe import find_recipe
from symconfig.plans.plan import NearRecipe, Plan
from symconfig.runs.recipes.near import compared, near_recipe

TUNED = "mb-0.4.0-perf-llama3-70b-pretrain-h100-64gpu-bf16-v1"  # tp 4, pp 4, vpp 5, cp 2


def planned(**pins: int) -> Plan:
    return solved("llama3.1-70b", "h100", 64, 128, 8192, pins=pins, top=1).plan


def near(plan: Plan) -> NearRecipe:
    found = near_recipe(plan)
    assert found is not None
    return found


def test_of_its_own_job_the_recipe_is_the_nearest() -> None:
    plan = planned(tp=8, pp=4, vpp=5, cp=2)
    found = near(plan)
    assert found.id == TUNED
    assert found.job == "llama3.1-70b on 64 x h100, batch 128, 8,192 tokens, bf16"
    assert plan.beside.recipe == found
    told = {one.field: (one.ours, one.theirs) for one in found.differences}
    assert told["tp"] == ("8", "4")
    assert "pp" not in told


def test_a_difference_costs_what_a_plan_with_it_alone_takes() -> None:
    """Against the search with that value pinned, and all else as it was."""
    plan = planned(tp=8, pp=4, vpp=5, cp=2, mbs=1)
    (tp,) = [one for one in near(plan).differences if one.field == "tp"]
    assert tp.loss is not None
    other = solved("llama3.1-70b", "h100", 64, 128, 8192, pins=pins_of(plan) | {"tp": 4}, top=1).plan
    assert tp.loss == pytest.approx(other.best.predicted.step_s / plan.best.predicted.step_s - 1, abs=1e-6)


def pins_of(plan: Plan) -> dict[str, int | str]:
    p, options = plan.best.parallel, plan.best.options
    return {
        **{name: getattr(p, name) for name in ("pp", "vpp", "cp")},
        "mbs": plan.best.batch.micro,
        "recompute": options.recompute.granularity,
        "zero": options.zero_stage,
    }


def test_what_does_not_run_says_why() -> None:
    plan = planned(tp=4, pp=4, vpp=5, cp=2)
    file, recipe = find_recipe(TUNED)
    three = recipe.model_copy(update={"layout": recipe.layout.model_copy(update={"tp": 3})})
    found = compared(plan, file, three)
    (tp,) = [one for one in found.differences if one.field == "tp"]
    assert tp.loss is None
    assert tp.why.startswith("cannot run: ")
    assert found.loss is None


def test_a_model_that_the_recipes_do_not_have_gets_one_of_its_kind() -> None:
    plan = solved("llama2-70b", "h100", 64, 128, 4096, top=1).plan
    assert "llama3.1-70b" in near(plan).job
    experts = solved("mixtral-8x7b", "h100", 64, 256, 4096, top=1).plan
    assert "mixtral-8x7b" in near(experts).job


def test_other_frameworks_have_none() -> None:
    plan = solved("llama2-7b", "a100-80gb", 8, 64, 4096, backend="deepspeed", top=1).plan
    assert plan.beside.recipe is None


def test_the_plan_itself_loses_nothing() -> None:
    plan = planned(tp=4, pp=4, vpp=5, cp=2)
    file, recipe = find_recipe(TUNED)
    same = recipe.model_copy(update={"options": recipe.options.model_copy(update={"tp_comm": None})})
    found = compared(replace(plan, search=plan.search), file, same)
    left = {one.field for one in found.differences}
    assert prod(getattr(plan.best.parallel, name) for name in ("tp", "pp", "cp")) == 32
    assert not left & {"tp", "pp", "vpp", "cp"}
