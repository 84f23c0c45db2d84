"""`symconfig timeline`: drawings, numbers, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from symconfig.api.planning import PlanResult
from symconfig.errors import InputError
from symconfig.plans.file import load_plan
from tests.cli.support import Run, run
from tests.sample_plans import sample_plan, signed

__all__ = ["run"]


def written(folder: Path, **degrees: Any) -> Path:
    path = folder / "plan.json"
    path.write_text(sample_plan("llama2-13b", "a100-80gb", **degrees).to_json(), encoding="utf-8")
    return path


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return written(tmp_path, tp=2, pp=4, dp=2, global_batch=32)


def test_it_draws_a_line_of_work_and_one_of_memory_for_each_stage(run: Run, plan: Path) -> None:
    outcome = run("timeline", plan)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0].endswith("1F1B, 4 stages, 16 microbatches")
    assert [line[:2] for line in lines if line[:1].isdigit()] == [f"{stage} " for stage in (0, 1, 2, 3) * 2]
    assert all(len(line) <= 120 for line in lines[4:])
    assert "\x1b" not in outcome.out


def test_a_plan_with_one_stage_has_a_timeline_too(run: Run, tmp_path: Path) -> None:
    outcome = run("timeline", written(tmp_path, backend="deepspeed", dp=16, global_batch=64))
    assert outcome.code == 0
    assert "one stage, 4 microbatches" in outcome.out


def test_numbers_agree_with_themselves(run: Run, plan: Path) -> None:
    data = run("timeline", plan, "--json").json()
    assert data["schema"] == "symconfig.timeline/1"
    assert (data["schedule"], data["num_microbatches"], len(data["stages"])) == ("1f1b", 16, 4)
    for stage in data["stages"]:
        assert stage["busy_s"] == pytest.approx((1 - stage["idle"]) * data["pipeline_s"])
        assert 0 < stage["busy_s"] <= stage["finish_s"] <= data["pipeline_s"]
    peaks = [stage["peak_bytes"] for stage in data["stages"]]
    assert max(peaks[1:3]) < peaks[0]


def test_another_schedule_says_where_it_runs(run: Run, plan: Path) -> None:
    outcome = run("timeline", plan, "--schedule", "gpipe")
    assert outcome.code == 0
    assert "GPipe" in outcome.out
    assert "not in Megatron-LM/DeepSpeed" in outcome.out
    peaks = [
        max(stage["peak_bytes"] for stage in run("timeline", plan, "--json", *words).json()["stages"])
        for words in ((), ("--schedule", "gpipe"))
    ]
    assert peaks[0] < peaks[1]  # GPipe holds every microbatch


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--schedule", "2f2b"), "there is no such schedule (got 2f2b, need gpipe, 1f1b, interleaved"),
        (("--candidate", "3"), "out of range (got 3, need a whole number from 1 to 2)"),
        (("--candidate", "best"), "--candidate"),
        (("--width", "10"), "need a whole number from 60 to 2000"),
    ],
)
def test_bad_input_is_said_in_a_sentence(run: Run, plan: Path, words: tuple[str, ...], says: str) -> None:
    outcome = run("timeline", plan, *words)
    assert outcome.code == 2
    assert says in outcome.err
    assert not outcome.out


def test_all_that_is_wrong_is_said_at_once(run: Run, plan: Path) -> None:
    outcome = run("timeline", plan.parent / "none.json", "--schedule", "x", "--width", "x", "--json")
    assert outcome.code == 2
    assert len(outcome.json()["problems"]) == 3


def test_a_damaged_plan_is_refused(run: Run, plan: Path) -> None:
    data = json.loads(plan.read_text())
    data["best"]["stages"] = data["best"]["stages"][:2]
    plan.write_text(signed(data))
    outcome = run("timeline", plan)
    assert outcome.code == 2
    assert "other stages than its degrees say" in outcome.err


def test_a_schedule_that_needs_more_microbatches_is_refused(run: Run, tmp_path: Path) -> None:
    outcome = run("timeline", written(tmp_path, tp=2, pp=4, dp=2, global_batch=4), "--schedule", "interleaved")
    assert outcome.code == 2
    assert "microbatches" in outcome.err


def test_all_schedules_are_compared(run: Run, plan: Path) -> None:
    shown = run("timeline", plan, "--compare", "--all").out
    assert "The same plan under other schedules" in shown
    assert "1F1B (planned)" in shown
    assert "GPipe" in shown
    rows = run("timeline", plan, "--compare", "--json").json()["schedules"]
    assert [row["schedule"] for row in rows if row.get("planned")] == ["1f1b"]
    by_name = {row["schedule"]: row for row in rows}
    assert by_name["gpipe"]["runs_in"] == []
    assert by_name["gpipe"]["peak_bytes"] > by_name["1f1b"]["peak_bytes"]


def test_schedules_that_its_framework_does_not_run_are_counted_unless_all_are_asked_for(run: Run, plan: Path) -> None:
    shown = run("timeline", plan, "--compare").out
    assert "GPipe" not in shown
    assert "not in Megatron-LM/DeepSpeed" not in shown
    assert "10 schedules that Megatron-LM does not run: --all." in shown


@pytest.mark.parametrize("degrees", [{"tp": 2, "pp": 4, "dp": 2}, {"backend": "deepspeed", "dp": 16}])
def test_a_written_plan_has_its_schedule_in_the_report_and_as_a_trace(
    run: Run, tmp_path: Path, degrees: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    outcome = run("render", written(tmp_path, **degrees, global_batch=32), "--out", out)
    assert outcome.code == 0
    assert "trace.json" in outcome.out
    traced = json.loads((out / "trace.json").read_text())
    assert {event["cat"] for event in traced["traceEvents"] if event["ph"] == "X"} >= {"forward", "backward"}
    report = (out / "REPORT.md").read_text()
    assert report.count("## Schedule\n") == 1
    assert ("1F1B (planned)" in report) == ("pp" in degrees)
    assert "not in Megatron-LM/DeepSpeed" not in report
    again = tmp_path / "again"
    assert run("render", out / "plan.json", "--out", again).code == 0
    assert (again / "trace.json").read_bytes() == (out / "trace.json").read_bytes()


def test_a_plan_that_cannot_be_retraced_is_written_without_a_trace(
    run: Run, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise LookupError("dense_of_another_version")

    monkeypatch.setattr("symconfig.report.timeline.seen.restore", fails)
    out = tmp_path / "out"
    assert run("render", plan, "--out", out).code == 0
    assert not (out / "trace.json").exists()
    assert "dense_of_another_version" in (out / "REPORT.md").read_text()
    outcome = run("timeline", plan)
    assert outcome.code == 2
    assert "cannot retrace" in outcome.err


def test_from_python_the_same_step_is_simulated(run: Run, plan: Path) -> None:
    result = PlanResult(load_plan(plan))
    said = run("timeline", plan, "--json").json()
    assert [result.timeline().idle(stage) for stage in range(4)] == [stage["idle"] for stage in said["stages"]]
    assert result.timeline(schedule="gpipe").timeline.schedule.name == "gpipe"
    with pytest.raises(InputError, match="need 1 to 2"):
        result.timeline(candidate=3)
    assert result.timeline(slow={1: 2}).timeline.step_s > result.timeline().timeline.step_s
    with pytest.raises(InputError, match="no such stage") as error:
        result.timeline(slow={-1: 2.0, 4: 2.0, 0: 0.5})
    assert len(error.value.problems) == 3


def test_schedules_without_a_plan(run: Run) -> None:
    """GPipe's bubble: 8 stages and 32 microbatches are 8 x 32 / 39 times as fast as one stage."""
    rows = {
        row["schedule"]: row
        for row in run("timeline", "--stages", "8", "--microbatches", "32", "--json").json()["schedules"]
    }
    assert rows["gpipe"]["speedup"] == pytest.approx(8 * 32 / 39)
    shown = run("timeline", "--stages", "8", "--microbatches", "32").out
    assert "6.56" in shown
    assert "PipeMare" in shown


def test_a_straggler_in_a_plan(run: Run, plan: Path) -> None:
    plain = run("timeline", plan, "--compare", "--json").json()
    slowed = run("timeline", plan, "--compare", "--slow", "1=1.5", "--slow", "replica=2", "--json").json()
    assert plain["pipeline_s"] < slowed["pipeline_s"] < 1.5 * plain["pipeline_s"]
    assert slowed["stages"][1]["busy_s"] > 1.3 * plain["stages"][1]["busy_s"]
    assert slowed["stages"][0]["busy_s"] == pytest.approx(plain["stages"][0]["busy_s"])
    own = [next(row["step_s"] for row in each["schedules"] if row.get("planned")) for each in (plain, slowed)]
    assert own[1] - own[0] == pytest.approx(slowed["pipeline_s"] - plain["pipeline_s"])
    barrier = slowed["replicas"][0]
    assert (barrier["staleness"], barrier["in_turn"]) == (0, 2.0)
    shown = run("timeline", plan, "--slow", "1=1.5", "--slow", "replica=2").out
    assert "Slowed: stage 1 by 1.5; without that the pipeline takes" in " ".join(shown.split())
    assert "2 replicas, one of them 2 times slower" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "there is nothing to draw"),
        (("--stages", "8"), "need --stages and --microbatches"),
        (("--stages", "8", "--microbatches", "8", "--slow", "8=2"), "there is no such stage (got 8, need a stage from"),
        (("--stages", "8", "--microbatches", "8", "--compare"), "--compare: this needs a plan"),
        (("--replicas", "8"), "need --replicas and --slow replica=TIMES"),
        (("--slow", "1=0.5", "--stages", "x"), "this is no straggler (got 1=0.5"),
    ],
)
def test_bad_input_without_a_plan_is_said_in_a_sentence(run: Run, words: tuple[str, ...], says: str) -> None:
    outcome = run("timeline", *words)
    assert outcome.code == 2
    assert says in outcome.err


def test_a_plan_has_its_own_stages(run: Run, plan: Path) -> None:
    outcome = run("timeline", plan, "--stages", "8")
    assert outcome.code == 2
    assert "--stages: this is of no plan" in outcome.err
