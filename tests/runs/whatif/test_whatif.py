"""Borders of `whatif` against planning on both sides of them, and ranges as people write them."""

from __future__ import annotations

from functools import cache

import pytest

import symconfig
from symconfig.api.planning import PlanResult
from symconfig.errors import InputError
from symconfig.runs.whatif.vary import varied
from symconfig.runs.whatif.whatif import WhatIf, named
from symconfig.solve.plan_symbols import break_even

JOB = {"model": "llama3.1-8b", "cluster": "h100", "gpus": 16}


@cache
def planned(batch: int = 256) -> PlanResult:
    return symconfig.plan(**JOB, global_batch_size=batch)


@cache
def answer() -> WhatIf:
    return symconfig.whatif(planned(), ["global_batch_size=64..1024"])


def test_a_border_is_where_planning_on_either_side_gives_another_plan() -> None:
    (line,) = answer().lines
    assert len(line.spans) > 1
    for before, after in zip(line.spans, line.spans[1:], strict=False):
        assert after.low - before.high == line.vary.step
        sides = [planned(round(value)).best for value in (before.high, after.low)]
        assert [named(side) for side in sides] == [before.answer.name, after.answer.name]
        assert sides[0].predicted.step_s == before.high_s
        assert sides[1].predicted.step_s == after.answer.step_s
    assert (line.spans[0].low, line.spans[-1].high) == (64, 1024)


def test_the_plan_itself_is_the_best_at_what_it_was_made_for() -> None:
    found = answer()
    mine = next(span for span in found.lines[0].spans if span.low <= 256 <= span.high)
    assert mine.answer.name == found.now.name == named(planned().best)


def test_a_memory_in_which_nothing_fits_is_a_range_of_its_own() -> None:
    (line,) = symconfig.whatif(planned(), ["memory=0.1..1x"]).lines
    assert line.spans[0].answer.step_s is None
    assert line.spans[-1].answer.name == named(planned().best)
    before, after = line.spans[-2:]
    assert after.low / before.high <= 1 + 1e-3


def test_the_break_even_of_two_candidates_is_where_their_steps_are_equal() -> None:
    one, other = planned().symbolic(1), planned().symbolic(2)
    rates = {name: each for name, each in one.traced.tape.inputs.items() if name == "launch_s"}
    assert rates
    found = break_even(one, other, "launch_s", 1e-7, 1e-2)
    if found is None:
        steps = [[float(each.at({"launch_s": value}).step_s) for each in (one, other)] for value in (1e-7, 1e-2)]
        assert (steps[0][0] > steps[0][1]) == (steps[1][0] > steps[1][1])
    else:
        mine, theirs = (float(each.at({"launch_s": found}).step_s) for each in (one, other))
        assert mine == pytest.approx(theirs, rel=1e-9)


def test_all_that_is_wrong_is_said_at_once() -> None:
    words = ["colour=1..2", "network=2..0.5x", "global_batch_size=a..4", "links=0.5..2", "memory", "seq_length=1..2x"]
    with pytest.raises(InputError) as caught:
        varied(planned().plan, words)
    told = "\n".join(map(str, caught.value.problems))
    for part in (
        "cannot be varied (got colour, need one of global_batch_size",
        "is an empty range (got 2..0.5x",
        "is no number above 0 (got a",
        "is varied by a factor (got 0.5..2, need 0.5..2x",
        "is no range (got memory",
        "is a number, no factor (got 1..2x, need 1..2",
    ):
        assert part in told


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "nothing is varied"),
        (["network=1..2x", "network=1..3x"], "is varied twice"),
        (["global_batch_size=1..2"], "holds less than two values"),
        (["global_batch_size=1.5..64"], "whole numbers"),
        (["network=1..1000x"], "is out of range"),
    ],
)
def test_each_of_them_is_a_sentence(words: list[str], part: str) -> None:
    with pytest.raises(InputError, match=part):
        varied(planned().plan, words)
