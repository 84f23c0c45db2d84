"""What a new plan does otherwise, what the old choice would be now, and two plans side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import symconfig
from symconfig.plans.plan import Plan
from symconfig.report.grid import plain
from symconfig.report.replan import diff_blocks, diff_data
from symconfig.runs.replan.changes import carried, changed, judged
from symconfig.runs.replan.diff import Diff, diff, differences
from symconfig.solve.choice import TIE
from symconfig.solve.prospect import Setup
from symconfig.units import GIB
from tests.runs.replan.support import plan
from tests.sample_plans import sample_plan

CASES: dict[str, dict[str, Any]] = {
    "dense": {},
    "interleaved": {"tp": 2, "pp": 2, "vpp": 2},
    "block recompute": {"batch": 16, "recompute": "full", "mbs": 1},
    "ZeRO 3": {"backend": "deepspeed", "zero": 3},
    "experts": {"model": "qwen3-30b-a3b", "cluster": "h100", "pp": 1, "ep": 8},
    "unfused": {"attention": "unfused", "pp": 1},
    "fp8": {"cluster": "h100", "precision": "fp8", "pp": 1},
    "adapter": {"model": "qwen2.5-7b-lora"},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_plans_own_choice_is_what_the_search_said_of_it(case: str) -> None:
    of = plan(**CASES[case])
    for candidate in of.ranked:
        found = judged(of, carried(candidate, of))
        assert not found.refused
        assert found.safe
        assert found.candidate.predicted.step_s == pytest.approx(candidate.predicted.step_s, rel=1e-6)
        assert found.candidate.predicted.device_bytes == pytest.approx(candidate.predicted.device_bytes, rel=1e-6)


def test_the_same_plan_has_no_changes() -> None:
    found = changed(plan(), plan())
    assert not found.decisions
    assert not found.follows
    assert str(found.stayed) == "takes as long"


def test_what_does_not_fit_any_more_is_said_in_bytes() -> None:
    found = changed(plan(pp=1), plan(seq_length=32768, pp=1))
    assert not found.stayed.fits
    assert found.stayed.over_bytes > 0
    assert f"{found.stayed.over_bytes / GIB:.2f} GiB more than is usable" in str(found.stayed)
    assert any("does not fit" in str(each.kept) for each in found.decisions)


def changed_degrees(plan: Plan, **degrees: int) -> Setup:
    """Return the plan's configuration with other degrees."""
    own = carried(plan.best, plan)
    return replace(own, **degrees)


def test_degrees_that_leave_a_rest_are_named() -> None:
    new = plan(gpus=24, batch=72, pp=1)
    assert judged(new, changed_degrees(new, tp=16, dp=1)).refused.endswith("= 16 does not divide 24 GPUs")
    wrong = judged(new, replace(changed_degrees(new, tp=1, cp=1, dp=24), micro=16))
    assert wrong.refused == "dp 24 x micro-batch 16 does not divide the batch of 72"
    heads = judged(new, replace(changed_degrees(new, tp=12, cp=1, dp=2), micro=1, sequence_parallel=True))
    assert "32 attention heads cannot be split over tp 12" in heads.refused


def test_what_the_framework_has_not_is_named() -> None:
    deepspeed = plan(backend="deepspeed")
    found = changed(plan(tp=2, pp=2, vpp=2), deepspeed).stayed
    assert found.refused == "deepspeed 0.19.8 has no pipeline for this model"
    assert str(found).startswith("cannot run: ")


def test_what_the_target_cannot_write_is_named() -> None:
    new = plan(backend="fsdp", cluster="h100", target="transformers")
    some = replace(carried(new.best, new), recompute="full", recompute_method="block", recompute_layers=20)
    assert judged(new, some).refused.startswith("recompute: Transformers recomputes every n-th layer or none")


def test_experts_are_divided_only_where_there_are_some() -> None:
    experts, dense = plan(**CASES["experts"]), plan(cluster="h100", pp=1)
    assert carried(experts.best, dense).ep == 1
    assert "experts" in {each.decision for each in changed(dense, experts).decisions}


def test_a_decision_that_stays_is_faster_only_in_a_layout_that_was_not_tried() -> None:
    for old, new in ((plan(), plan(gpus=16)), (plan(tp=2, pp=1), plan()), (plan(), plan(batch=128))):
        for each in changed(old, new).decisions:
            assert not each.kept.fits or each.kept.slower >= 1 / TIE - 1, each
            assert each.decision == "stages" or not each.kept.fits or each.kept.slower >= -1e-9, each


def test_dp_and_accumulation_follow() -> None:
    found = changed(plan(pp=1), plan(gpus=16, batch=64, pp=1, mbs=1)).follows
    assert [text.split(":")[0] for text in found][:1] == ["dp 8 -> 16"]


def test_sequence_parallelism_goes_with_its_tensor_parallelism() -> None:
    old, new = plan(tp=2, pp=1), plan(tp=1, pp=1)
    assert old.best.configuration.sequence_parallel
    found = {each.decision: each for each in changed(old, new).decisions}
    assert "sequence parallel" not in found
    assert found["tp"].text == "tp 2 -> 1, sequence parallelism off" or found["tp"].text == "tp 2 -> 1"
    stayed = replace(changed_degrees(new, tp=2, dp=4), sequence_parallel=True)
    assert found["tp"].kept == judged(new, stayed)


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
