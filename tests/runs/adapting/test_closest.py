"""Of plans that the model cannot tell apart, the one that changes the fewest lines is taken, and its price is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from symconfig.api.existing import adapt as api_adapt
from symconfig.api.planning import plan as planned
from symconfig.errors import InputError
from symconfig.existing.audit.steps import moved
from symconfig.format import percent
from symconfig.plans.plan import Candidate, Plan
from symconfig.report.adapt import blocks
from symconfig.runs.adapting.adaptation import Adaptation, adaptation
from symconfig.runs.adapting.closest import changed_lines
from symconfig.runs.replan.carried import candidate, carried
from symconfig.solve.choice.choose import TOLD_APART
from tests.existing.adapt.scripts import array, options, written


@pytest.fixture(scope="module")
def solved() -> Plan:
    """Others are a little faster than its best, which is plainer, and much slower."""
    return planned(model="llama2-7b", cluster="h100", gpus=16, global_batch_size=128, seq_length=4096, top=5).plan


def script(folder: Path, plan: Plan) -> str:
    return written(folder, array(plan, options(plan)))


def said(outcome: Adaptation) -> str:
    return "\n".join(map(str, blocks(outcome, "best.json")))


def of(plan: Plan, *, close: bool) -> Candidate:
    """An alternative that can, or cannot, be told from the best by what it is expected to lose."""
    assert plan.best.judged is not None
    most = plan.best.judged.expected_loss + TOLD_APART
    found = [one for one in plan.alternatives if one.judged and (one.judged.expected_loss <= most) == close]
    return found[-1]


def test_a_close_alternative_that_the_script_runs_already_is_taken(tmp_path: Path, solved: Plan) -> None:
    mine = of(solved, close=True)
    outcome = adaptation(script(tmp_path, replace(solved, best=mine)), solved, {}, best="fewest-changes")
    assert outcome.files == {}
    assert outcome.done
    assert outcome.pick is not None
    assert outcome.pick.plan.best == mine
    assert outcome.pick.lines == 0 < outcome.pick.fastest_lines
    slower = mine.predicted.step_s / solved.fastest.predicted.step_s - 1
    assert f"{percent(slower)} slower than the fastest, 0 lines changed rather than" in said(outcome)
    assert "--best fastest" in said(outcome)


def test_the_fastest_or_the_planned_one_is_taken_where_that_is_asked_for(tmp_path: Path, solved: Plan) -> None:
    path = script(tmp_path, replace(solved, best=of(solved, close=True)))
    quick, own = (adaptation(path, solved, {}, (), best).pick for best in ("fastest", "planned"))
    assert quick is not None
    assert own is not None
    assert own.plan.best == solved.best
    assert quick.plan.best.predicted.step_s == solved.fastest.predicted.step_s
    assert quick.plan.best != solved.best


def test_an_alternative_that_is_told_apart_is_not_taken(tmp_path: Path, solved: Plan) -> None:
    mine = of(solved, close=False)
    outcome = adaptation(script(tmp_path, replace(solved, best=mine)), solved, {})
    assert outcome.pick is not None
    assert outcome.pick.plan.best.parallel != mine.parallel
    assert outcome.changes


@pytest.fixture(scope="module")
def staged() -> tuple[Plan, Candidate]:
    """A plan alone, and the run of a script whose stages are hardly slower than the plan's, of other micro-batches."""
    plan = planned(model="llama3.1-8b", cluster="h100", gpus=32, global_batch_size=512, seq_length=8192, top=3).plan
    other = next(one for one in plan.alternatives if one.parallel.pp > 1)
    run = moved(carried(plan.best, plan), carried(other, plan), ("stages",))
    alone = replace(plan, alternatives=(), beside=replace(plan.beside, simplest=None, fastest=None))
    return alone, candidate(plan, replace(run, micro=1))


def test_stages_of_the_script_stay_where_they_cost_nothing_that_can_be_told(
    tmp_path: Path, staged: tuple[Plan, Candidate]
) -> None:
    plan, mine = staged
    outcome = adaptation(script(tmp_path, replace(plan, best=mine)), plan, {}, best="fewest-changes")
    assert outcome.done
    assert outcome.pick is not None
    assert outcome.pick.kept
    assert outcome.pick.plan.best.parallel.pp == mine.parallel.pp > plan.best.parallel.pp
    assert [change.option for change in outcome.changes] == ["--micro-batch-size"]
    assert "the plan of best.json with more of the old run" in said(outcome)


def test_what_is_pinned_does_not_give_way(tmp_path: Path, staged: tuple[Plan, Candidate]) -> None:
    plan, mine = staged
    pinned = replace(plan, job=plan.job.model_copy(update={"pins": {"pp": str(plan.best.parallel.pp)}}))
    outcome = adaptation(script(tmp_path, replace(plan, best=mine)), pinned, {})
    assert outcome.pick is not None
    assert outcome.pick.plan.best == plan.best


def test_another_word_for_best_is_refused(tmp_path: Path, solved: Plan) -> None:
    with pytest.raises(InputError, match=r"best: wrong value .got 'quickest', need one of fewest-changes, fastest"):
        api_adapt(script(tmp_path, solved), solved, best="quickest")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [(b"a\nb\n", b"a\nb\n", 0), (b"a\nb\n", b"a\nc\nd\n", 2), (b"a\nb\nc\n", b"a\n", 2), (b"", b"x", 1)],
)
def test_lines_are_counted_as_a_reader_of_the_diff_would(before: bytes, after: bytes, count: int) -> None:
    assert changed_lines(before, after) == count
