"""Two plans side by side: what differs is listed once, what does not is left out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import symconfig
from symconfig.report.grid import plain
from symconfig.report.replan import diff_blocks, diff_data
from symconfig.runs.replan.diff import Diff, diff, differences
from tests.sample_plans import sample_plan

VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3),
                      lambda inner: st.dictionaries(st.text("ab", min_size=1, max_size=2), inner, max_size=3),
                      max_leaves=8)  # fmt: skip


@given(VALUES, VALUES)
def test_differences_are_none_of_equals_and_turn_around(one: object, other: object) -> None:
    assert differences(one, one) == ()
    there = {each.field: (each.before, each.after) for each in differences(one, other)}
    back = {each.field: (each.after, each.before) for each in differences(other, one)}
    assert there == back


def test_a_plan_is_no_other_one_than_itself() -> None:
    found = diff(sample_plan(), sample_plan())
    assert found.same
    assert plain(diff_blocks(found)) == "The plans are the same.\n"
    assert not any(found.sections.values())


def _found() -> Diff:
    return diff(sample_plan(tp=4, pp=2), sample_plan(tp=8, pp=1, zero_stage=0, training={"lr": 1e-4}))


def test_every_section_has_what_differs_and_nothing_else() -> None:
    found = _found()
    assert {each.field for each in found.sections["parallel"]} == {"tp", "pp"}
    changes = [(each.field, each.before, each.after) for each in found.sections["training"]]
    assert changes == [
        ("lr", 3e-4, 1e-4),
        ("min_lr", 3e-5, 1e-5),
    ]  # the second is a tenth of the first, unless it is said
    assert "zero_stage" in {each.field for each in found.sections["options"]}
    assert [each.field for each in found.sections["stages"]] == ["stage 0", "stage 1"]
    assert found.sections["stages"][0].before == "embedding + 20 dense"
    assert found.sections["stages"][1].after is None
    told = {each.field: (each.before, each.after) for each in found.sections["arguments"]}
    assert told["--tensor-model-parallel-size"] == ("4", "8")
    assert told["--use-distributed-optimizer"] == ("on", None)
    assert "--hidden-size" not in told


def test_a_part_that_only_one_has_is_none_of_the_others_seconds() -> None:
    one, other = sample_plan(), sample_plan()
    predicted = replace(other.best.predicted, time={"compute": 8.0, "new": 1.0}, step_s=9.0)
    found = diff(one, replace(other, best=replace(other.best, predicted=predicted)))
    deltas = {each.field: each.delta for each in found.sections["time"]}
    assert deltas["new"] == 1.0
    assert deltas["compute"] == -1.0
    whole = sum(delta for delta in deltas.values() if delta is not None)
    assert whole == pytest.approx(9.0 - one.best.predicted.step_s)
    text = plain(diff_blocks(found))
    assert "-1.000" in text
    assert "+1.000" in text


def test_plans_of_two_frameworks_have_no_options_in_common() -> None:
    found = diff(sample_plan(), sample_plan(backend="deepspeed"))
    assert found.sections["arguments"] == ()
    assert "two frameworks" in plain(diff_blocks(found))


def test_what_a_json_says_is_what_python_says() -> None:
    data = json.loads(json.dumps(diff_data(_found())))
    assert data["schema"] == "symconfig.diff/1"
    assert {"field": "tp", "before": 4, "after": 8, "delta": 4.0} in data["parallel"]
    assert symconfig.diff(sample_plan(), sample_plan()).same
