"""Families, draws, and what is picked among them."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.robust import robustness
from symconfig.cost.uneven import OF_STEP
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.plans.plan import Plan
from symconfig.solve.budget import peak_budget
from symconfig.solve.choice.choose import PLAINER, Drawn, pick
from symconfig.solve.choice.draws import DEGREE, DRAWS, ITSELF, MICRO, Draws, deviates, loads, own_error, priced_s
from symconfig.solve.choice.family import Family, family
from symconfig.solve.choice.published import splits
from symconfig.solve.choice.simplicity import simplicity
from symconfig.solve.choice.variants import variants
from symconfig.solve.costed import costed
from symconfig.solve.interval import recorded
from symconfig.solve.loads import waited
from symconfig.solve.prospect import Prospect
from symconfig.solve.restore import restore
from symconfig.solve.run import run
from symconfig.solve.search import FRONTS, resolved, search
from symconfig.solve.timeline import refined_s
from tests.solve.naive import job, tight
from tests.solve.test_brute_force import CASES, nested_loops

NAMES = ("dense", "experts", "uneven stages", "deepspeed")


@cache
def planned(name: str, top: int = FRONTS) -> Plan:
    model, gib, asked = CASES[name]
    return search(model, tight(model, gib), asked, top=top)


def founds(plan: Plan) -> list[Prospect]:
    return [restore(plan, each) for each in (plan.best, *plan.alternatives)]


@pytest.mark.parametrize("name", ["dense", "experts", "deepspeed"])
def test_every_plan_shown_is_of_another_family(name: str) -> None:
    shown = [family(found) for found in founds(planned(name))]
    assert len(shown) > 1
    assert len(set(shown)) == len(shown)


@pytest.mark.parametrize("name", NAMES)
def test_the_pick_does_not_depend_on_how_many_are_shown(name: str) -> None:
    assert planned(name, 1).best == planned(name).best
    assert planned(name, 3).alternatives == planned(name).alternatives[:2]


@pytest.mark.parametrize("name", NAMES)
def test_the_first_plan_is_the_plainest_shown_of_those_that_lose_no_more(name: str) -> None:
    (model, gib, _), plan = CASES[name], planned(name)
    cluster = tight(model, gib)
    lost = [each.judged.expected_loss for each in (plan.best, *plan.alternatives) if each.judged]
    plain = [simplicity(each, cluster.joined_gpus, splits(model, cluster)) for each in founds(plan)]
    assert plain[0] == min(one for one, loss in zip(plain, lost, strict=True) if loss <= lost[0])


@pytest.mark.parametrize("name", NAMES)
def test_the_front_runner_of_a_family_is_no_slower_than_its_best_candidate_of_the_loops(name: str) -> None:
    model, gib, asked = CASES[name]
    cluster = tight(model, gib)
    outcome = run(model, cluster, resolved(model, cluster, asked), 100, None, time.perf_counter())
    fronts = {family(found): found.step_s for found in outcome.weighed.ranked()}
    best: dict[Family, tuple[float, Prospect]] = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("symconfig.cost.machine.SPREAD", 0.0)
        for seconds, found in nested_loops(name).best.values():
            if family(found) not in best or seconds < best[family(found)][0]:
                best[family(found)] = seconds, found
    assert fronts.keys() >= best.keys()  # the loops have one ZeRO stage of each choice of degrees
    for name_, (_, found) in best.items():
        same = replace(found, machine=outcome.weighed.pieces[0].machine)
        assert fronts[name_] <= refined_s(same, costed(same)) * (1 + 1e-9)


def test_every_factor_is_drawn_alike_and_in_an_order_of_its_own() -> None:
    one, other = deviates("tp 2"), deviates("tp 4")
    assert np.array_equal(np.sort(one), np.sort(other))
    assert one.mean() == pytest.approx(0.0, abs=1e-12)
    assert one.std() == pytest.approx(1.0)
    assert abs(float((one * other).mean())) < 0.4
    # The same on every machine: Python's own generator, seeded by a name.
    assert int(deviates("tp 2").argmax()) == 4
    assert int(deviates("tp 2").argmin()) == 40


def test_plans_share_the_error_of_what_they_share() -> None:
    found = founds(planned("dense"))[0]
    other = replace(found, degrees=replace(found.degrees, cp=2 * found.degrees.cp))
    _, spread = recorded("time")
    apart = float((own_error(found) - own_error(other)).std())
    # One degree, and what is its own: the micro-batch and the rest of another family.
    assert apart == pytest.approx(spread.run * (2 * (DEGREE + MICRO + ITSELF)) ** 0.5, rel=0.3)
    laid_out = replace(found, split=replace(found.split, account_for_loss=not found.split.account_for_loss))
    assert np.array_equal(own_error(found), own_error(laid_out))


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_the_formula_under_the_clusters_own_constants_is_the_prediction(name: str) -> None:
    plan = planned(name)
    for found in founds(plan):
        stated = {each: np.full(3, found_value) for each, found_value in _constants(plan).items()}
        assert priced_s(found, plan.cluster, stated) == pytest.approx(np.full(3, found.step_s))


def _constants(plan: Plan) -> dict[str, float]:
    stated = {name: getattr(plan.cluster.kernels, name) for name in type(plan.cluster.kernels).model_fields}
    return {name: quantity.value for name, quantity in stated.items() if quantity is not None}


def test_unbalanced_experts_cost_wide_expert_parallelism_more() -> None:
    model, cluster = load_model("qwen3-30b-a3b"), load_cluster("gb200-nvl72")
    plan = search(model, cluster, job(8, 64, 4096).model_copy(update={"allow": ()}))
    found = next(each for each in founds(plan) if each.degrees.ep > 1)
    draws = Draws.of(plan.cluster)
    one, two, four = (loads(replace(found, degrees=replace(found.degrees, ep=ep)), waited) for ep in (1, 2, 4))
    assert one == {}
    assert (two[OF_STEP] > 1.0).all()
    assert (four[OF_STEP] > two[OF_STEP]).all()
    less, more = (priced_s(found, plan.cluster, draws.constants, each) for each in (two, four))
    assert (more > less).all()


def _drawn(found: Prospect, loss: float, plain: float) -> Drawn:
    return Drawn(found, (plain,), np.full(DRAWS, 1.0 + loss))


def test_simplicity_decides_what_cannot_be_told_apart_and_nothing_else() -> None:
    found = founds(planned("dense"))[0]
    fast, alike, far = _drawn(found, 0.0, 2), _drawn(found, 0.9 * PLAINER, 1), _drawn(found, 1.1 * PLAINER, 0)
    assert pick([fast, alike, far]) is alike
    assert pick([fast, far]) is fast
    assert pick([far]) is far


@pytest.mark.parametrize("name", NAMES)
def test_no_row_is_faster_than_the_fastest_plan(name: str) -> None:
    plan = planned(name)
    steps = [each.predicted.step_s for each in (plan.best, *plan.alternatives)]
    assert plan.fastest.predicted.step_s <= min(steps)


def test_variants_are_plainer_and_fit() -> None:
    model, cluster = load_model("llama3.1-70b"), load_cluster("h100")
    asked = resolved(model, cluster, job(64, 128, 8192).model_copy(update={"allow": ()}))
    ranked = run(model, cluster, asked, 1, None, time.perf_counter()).weighed.ranked()
    tried = variants(ranked[0])
    assert tried
    for found in tried:
        assert family(found) == family(ranked[0])
        assert found.split.layout is None
        parts = costed(found)
        assert max(parts.peaks) <= peak_budget(found.request, found.machine)
        assert found.step_s == pytest.approx(refined_s(found, parts))
        assert simplicity(found, cluster.joined_gpus) < simplicity(ranked[0], cluster.joined_gpus)


def test_a_micro_batch_that_is_no_power_of_two_and_many_chunks_have_plainer_variants() -> None:
    """Each as the search prices it where it is pinned."""
    model, cluster = load_model("gpt3-175b"), load_cluster("a100-80gb")
    asked = job(256, 768).model_copy(update={"allow": ()})

    def fastest(**pins: str) -> Prospect:
        pinned = resolved(model, cluster, asked.model_copy(update={"pins": {"tp": "8", "pp": "8", "cp": "1", **pins}}))
        return run(model, cluster, pinned, 1, None, time.perf_counter()).weighed.ranked()[0]

    tried = {(one.micro, one.split.vpp): one for one in variants(fastest(mbs="2..4", vpp="1..12"))}
    assert {(2, 12), (4, 12), (3, 6), (3, 4)} <= tried.keys()
    assert {micro for micro, _ in tried} == {2, 3, 4}
    for micro, vpp in ((4, 12), (3, 6)):
        assert tried[micro, vpp].step_s == pytest.approx(fastest(mbs=str(micro), vpp=str(vpp)).step_s)


def test_robustness_says_what_is_lost_where_something_is_otherwise() -> None:
    plan = planned("dense")
    shaken = robustness(plan)
    assert len(shaken) == 4
    assert all(0 <= one.loss < 0.5 for one in shaken)
    assert len({one.what for one in shaken}) == 4
