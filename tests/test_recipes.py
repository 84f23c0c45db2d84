"""What the layout of a published recipe costs in the job of a plan: the fastest plan with the recipe's pins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.api.planning import plan as solved
from symconfig.descriptor.recipe import find_recipe
from symconfig.plans.plan import Plan
from tools.recipes import compared

TUNED = "mb-0.4.0-perf-llama3-70b-pretrain-h100-64gpu-bf16-v1"  # tp 4, pp 4, vpp 5, cp 2


def planned(**pins: int) -> Plan:
    return solved("llama3.1-70b", "h100", 64, 128, 8192, pins=pins, top=1).plan


def test_its_layout_and_its_split_cost_what_plans_with_these_pins_take() -> None:
    plan = planned(tp=8, pp=4, vpp=5, cp=2)
    free = replace(plan, job=plan.job.model_copy(update={"pins": {}}))
    _, recipe = find_recipe(TUNED)
    found = compared(free, recipe)
    split = {"tp": 4, "pp": 4, "cp": 2, "ep": 1, "etp": 1}
    for priced, pins in ((found.layout, recipe.as_pins()), (found.split, split)):
        other = solved("llama3.1-70b", "h100", 64, 128, 8192, pins=pins, top=1).plan
        assert priced.loss == pytest.approx(other.best.predicted.step_s / plan.best.predicted.step_s - 1, abs=1e-6)
    assert compared(planned(tp=4, pp=4, cp=2), recipe).split is None


def test_what_does_not_run_says_why_and_what_needs_an_option_names_it() -> None:
    _, recipe = find_recipe(TUNED)
    plan = planned(tp=4, pp=4, vpp=4, cp=2)
    three = recipe.model_copy(update={"layout": recipe.layout.model_copy(update={"tp": 3})})
    layout = compared(plan, three).layout
    assert layout.loss is None
    assert layout.why
    options = recipe.options.model_copy(update={"gradients": "bf16"})
    layout = compared(plan, recipe.model_copy(update={"options": options})).layout
    assert layout.opens == ("bf16_gradients",)
