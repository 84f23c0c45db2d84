"""The nearest published recipe beside a plan: which it is, and what each of its differences costs."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from symconfig.api.planning import plan as solved
from symconfig.descriptor.recipe import Recipe, RecipeFile, find_recipe
from symconfig.plans.beside import comparisons
from symconfig.plans.plan import Plan
from symconfig.plans.recipe import NearRecipe
from symconfig.runs.compared import with_comparisons
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
    assert plan.beside.recipe is None  # a plan is made without it
    assert with_comparisons(plan).beside.recipe == found
    told = {one.field: (one.ours, one.theirs) for one in found.differences}
    assert told["tp"] == ("8", "4")
    assert "pp" not in told


def test_a_difference_costs_what_a_plan_with_it_alone_takes() -> None:
    """Against the search with that value pinned, and all else as it was, tensor parallelism's user buffers too."""
    plan = planned(tp=8, pp=4, vpp=5, cp=2, mbs=1)
    (tp,) = [one for one in near(plan).differences if one.field == "tp"]
    assert tp.loss is not None
    wanted = pins_of(plan) | {"tp": 4, "user_buffers": "true"}
    other = solved("llama3.1-70b", "h100", 64, 128, 8192, pins=wanted, top=1).plan
    assert tp.loss == pytest.approx(other.best.predicted.step_s / plan.best.predicted.step_s - 1, abs=1e-6)


def pins_of(plan: Plan) -> dict[str, int | str]:
    p, options = plan.best.parallel, plan.best.options
    return {
        **{name: getattr(p, name) for name in ("pp", "vpp", "cp")},
        "mbs": plan.best.batch.micro,
        "recompute": options.recompute.granularity,
        "zero": options.zero_stage,
    }


def test_an_exchange_beside_nothing_costs_what_it_hides() -> None:
    """A recipe may state that gradients, or new weights, move with nothing beside them; plans always hide them."""
    plan, (file, recipe) = planned(tp=4, pp=4, vpp=5, cp=2), find_recipe(TUNED)

    def loss(field: str, **stated: bool) -> float:
        other = recipe.model_copy(update={"options": recipe.options.model_copy(update=stated)})
        (one,) = [each for each in compared(plan, file, other).differences if each.field == field]
        assert one.loss is not None
        return one.loss

    gathered = loss("weights gathered beside computation", param_gather=False)
    reduced = loss("gradients reduced beside computation", grad_reduce=False)
    assert 0 < gathered < reduced
    assert not [each for each in compared(plan, file, recipe).differences if "beside computation" in each.field]


def test_what_a_silent_source_does_not_say_is_as_the_plan_has_it() -> None:
    """Tables of degrees leave to their programs what is on: that is not off."""
    plan, (file, recipe) = planned(tp=4, pp=4, vpp=5, cp=2), find_recipe(TUNED)
    mine = plan.best.options
    on = replace(plan, best=replace(plan.best, options=replace(mine, overlap=replace(mine.overlap, tp_comm=True))))
    said = recipe.model_copy(update={"options": recipe.options.model_copy(update={"tp_comm": None})})
    sources = {name: one.model_copy(update={"silent": True}) for name, one in file.sources.items()}

    def fields(of: RecipeFile) -> set[str]:
        return {one.field for one in compared(on, of, said).differences}

    assert "user buffers" in fields(file)
    assert "user buffers" not in fields(file.model_copy(update={"sources": sources}))


def test_what_has_no_price_is_named_beside_what_has() -> None:
    plan, (file, recipe) = planned(tp=8, pp=4, vpp=5, cp=2), find_recipe(TUNED)
    options = recipe.options.model_copy(update={"own": "DualPipe"})
    found = compared(plan, file, recipe.model_copy(update={"options": options}))
    assert found.left_out == "DualPipe"
    said = "\n".join(comparisons(replace(plan, beside=replace(plan.beside, recipe=found))))
    assert "its layout, without its DualPipe, which has no price in the model, is " in said


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
    assert with_comparisons(plan).beside.recipe is None


def test_the_plan_itself_loses_nothing() -> None:
    plan = planned(tp=4, pp=4, vpp=5, cp=2)
    file, recipe = find_recipe(TUNED)
    same = recipe.model_copy(update={"options": recipe.options.model_copy(update={"tp_comm": None})})
    found = compared(replace(plan, search=plan.search), file, same)
    left = {one.field for one in found.differences}
    assert prod(getattr(plan.best.parallel, name) for name in ("tp", "pp", "cp")) == 32
    assert not left & {"tp", "pp", "vpp", "cp"}


def stating(name: str, **options: object) -> tuple[RecipeFile, Recipe]:
    """Return a recipe that states other options, too."""
    file, recipe = find_recipe(name)
    return file, recipe.model_copy(update={"options": recipe.options.model_copy(update=options)})


def test_states_in_host_memory_cost_what_a_plan_with_them_there_takes() -> None:
    plan = planned(tp=8, pp=4, vpp=5, cp=2, mbs=1)
    (offload,) = [
        one for one in compared(plan, *stating(TUNED, offload="optimizer True")).differences if "host" in one.field
    ]
    assert (offload.ours, offload.theirs, offload.opens) == ("0%", "100%", ("optimizer_offload",))
    wanted = pins_of(plan) | {"tp": 8, "optimizer_offload": 1}
    other = solved("llama3.1-70b", "h100", 64, 128, 8192, pins=wanted, top=1).plan
    assert offload.loss == pytest.approx(other.best.predicted.step_s / plan.best.predicted.step_s - 1, abs=1e-6)


def test_its_split_costs_what_the_fastest_plan_with_its_degrees_takes() -> None:
    plan = planned(tp=8, pp=4, vpp=5, cp=2)
    free = replace(plan, job=plan.job.model_copy(update={"pins": {}}))
    split = compared(free, *find_recipe(TUNED)).split
    assert split is not None
    assert (split.ours, split.theirs) == ("tp 8 pp 4 cp 2", "tp 4 pp 4 cp 2")
    other = planned(tp=4, pp=4, cp=2, ep=1, etp=1)
    assert split.loss == pytest.approx(other.fastest.predicted.step_s / plan.best.predicted.step_s - 1, abs=1e-6)
    assert compared(other, *find_recipe(TUNED)).split is None


def test_what_the_job_does_not_allow_is_named_and_priced_without() -> None:
    plan = planned(tp=4, pp=4, vpp=4, cp=2)
    found = compared(plan, *stating(TUNED, gradients="bf16"))
    without = compared(plan, *stating(TUNED, gradients="fp32"))
    assert found.opens == ("bf16_gradients",)
    assert found.allowed is not None
    assert found.loss is not None
    assert without.loss is not None
    assert found.allowed.loss == without.loss > found.loss
    assert (without.opens, without.allowed) == ((), None)
    allowed = solved("llama3.1-70b", "h100", 64, 128, 8192, pins={"tp": 4}, allow=["bf16_gradients"], top=1).plan
    assert not compared(allowed, *stating(TUNED, gradients="bf16")).opens


def test_stages_of_a_recipe_stay_where_its_degrees_are_others() -> None:
    """A string of as many chunks on other stages is the same string."""
    pins: dict[str, str | int] = {"tp": 8, "pp": 8, "vpp": 1, "cp": 1, "layout": "Et*9|(t*10|)*5t*11|t*10L"}
    plan = solved("llama3.1-70b", "h100", 64, 128, 8192, pins=pins, top=1).plan
    file, recipe = stating(TUNED, gradients=None, tp_comm=True)
    layout = {"tp": 8, "pp": 4, "vpp": 2, "cp": 1, "stages": pins["layout"], "zero": None, "recompute": None}
    same = recipe.model_copy(update={"layout": recipe.layout.model_copy(update=layout)})
    other = solved("llama3.1-70b", "h100", 64, 128, 8192, pins=pins_of(plan) | pins | {"pp": 4, "vpp": 2}, top=1).plan
    loss = other.fastest.predicted.step_s / plan.best.predicted.step_s - 1
    assert compared(plan, file, same).loss == pytest.approx(loss, abs=1e-6)


def test_layers_that_do_not_share_out_are_laid_as_a_plan_would_lay_them() -> None:
    plan = solved("llama3.1-70b", "h100", 96, 96, 8192, pins={"tp": 8, "pp": 4, "vpp": 1, "cp": 1}, top=1).plan
    file, recipe = stating(TUNED, gradients=None, tp_comm=True)
    layout = {"tp": 8, "pp": 3, "vpp": 1, "cp": 1, "stages": None, "micro": None, "recompute": None}
    three = recipe.model_copy(update={"layout": recipe.layout.model_copy(update=layout)})
    other = solved("llama3.1-70b", "h100", 96, 96, 8192, pins=pins_of(plan) | {"pp": 3, "tp": 8}, top=1).plan
    loss = other.fastest.predicted.step_s / plan.best.predicted.step_s - 1
    assert compared(plan, file, three).loss == pytest.approx(loss, abs=1e-3)
