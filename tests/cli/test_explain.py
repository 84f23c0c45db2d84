"""`symconfig explain --timeline`: its numbers, its trace, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from symconfig.api.planning import PlanResult
from symconfig.errors import InputError
from symconfig.plans.file import load_plan
from tests.cli.support import Run
from tests.sample_plans import sample_plan


def written(folder: Path, **degrees: Any) -> Path:
    path = folder / "plan.json"
    path.write_text(sample_plan("llama2-13b", "a100-80gb", **degrees).to_json(), encoding="utf-8")
    return path


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return written(tmp_path, tp=2, pp=4, dp=2, global_batch=32)


def test_it_has_a_row_for_each_stage(run: Run, plan: Path) -> None:
    outcome = run.done("explain --timeline", plan)
    lines = outcome.out.splitlines()
    assert lines[0].endswith("1F1B, 4 stages, 16 microbatches")
    assert [line.split()[0] for line in lines if line.lstrip()[:1].isdigit() and line.count("%") == 1][:4] == list(
        "0123"
    )


def test_numbers_agree_with_themselves(run: Run, plan: Path) -> None:
    data = run("explain --timeline", plan, "--json").json()
    assert data["schema"] == "symconfig.timeline/1"
    assert (data["schedule"], data["num_microbatches"], len(data["stages"])) == ("1f1b", 16, 4)
    for stage in data["stages"]:
        assert stage["busy_s"] == pytest.approx((1 - stage["idle"]) * data["pipeline_s"])
        assert 0 < stage["busy_s"] <= stage["finish_s"] <= data["pipeline_s"]
    peaks = [stage["peak_bytes"] for stage in data["stages"]]
    assert max(peaks[1:3]) < peaks[0]


@pytest.mark.parametrize("degrees", [{"tp": 2, "pp": 4, "dp": 2}, {"backend": "deepspeed", "dp": 16}])
def test_a_written_plan_has_its_schedule_in_the_report_and_as_a_trace(
    run: Run, tmp_path: Path, degrees: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    outcome = run.done("render", written(tmp_path, **degrees, global_batch=32), "--out", out)
    assert "trace.json" in outcome.out
    traced = json.loads((out / "trace.json").read_text())
    assert {event["cat"] for event in traced["traceEvents"] if event["ph"] == "X"} >= {"forward", "backward"}
    report = (out / "REPORT.md").read_text()
    assert report.count("## Schedule\n") == 1
    again = tmp_path / "again"
    run.done("render", out / "plan.json", "--out", again)
    assert (again / "trace.json").read_bytes() == (out / "trace.json").read_bytes()


def test_a_plan_that_cannot_be_retraced_is_written_without_a_trace(
    run: Run, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise LookupError("dense_of_another_version")

    monkeypatch.setattr("symconfig.report.timeline.restore", fails)
    out = tmp_path / "out"
    run.done("render", plan, "--out", out)
    assert not (out / "trace.json").exists()
    assert "dense_of_another_version" in (out / "REPORT.md").read_text()
    assert "cannot retrace" in run.refused("explain --timeline", plan)


def test_from_python_the_same_step_is_simulated(run: Run, plan: Path) -> None:
    result = PlanResult(load_plan(plan))
    said = run("explain --timeline", plan, "--json").json()
    assert [result.timeline().idle(stage) for stage in range(4)] == [stage["idle"] for stage in said["stages"]]
    with pytest.raises(InputError, match="need a whole number from 1 to 2"):
        result.timeline(candidate=3)


def test_a_trace_is_written_and_only_replaced_with_force(run: Run, plan: Path, tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    words = ("explain", plan, "--timeline", "--trace", path)
    ended = run.done(*words)
    assert f"wrote {path}" in ended.err
    assert json.loads(path.read_text())["traceEvents"]
    assert run(*words).code == 2
    run.done(*words, "--force")
