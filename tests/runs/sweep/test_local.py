"""The local engine, with real processes: the same plans as one at a time, and workers that die."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import symconfig
from symconfig.runs.sweep.engines import TRIES, Wanted, local, run
from symconfig.runs.sweep.points import Point, points
from symconfig.runs.sweep.task import Status, Task
from tests.runs.sweep.support import read

CHEAP = """\
job: {cluster: h100, seq_length: 2048, global_batch_size: 16, pins: {pp: 1}}
sweep:
  model: [qwen2.5-7b-lora, llama2-7b]
  gpus: [8, 12]
"""
# A worker that answers with nothing but the id, and dies as its task says.
PRETENDS = """
import json, os, signal, sys
from symconfig.runs.sweep.planner import planner
for line in sys.stdin:
    task = json.loads(line)
    marks = {marks!r}
    if task["id"] in {killed!r}:
        os.kill(os.getpid(), signal.SIGKILL)
    if task["id"] in {once!r} and not os.path.exists(marks + task["id"]):
        open(marks + task["id"], "w").close()
        sys.exit(3)
    row = {{"id": task["id"], "status": "planned", "planner": planner(), "reason": "", "values": {{}}}}
    print(json.dumps(row), flush=True)
"""


def tasks() -> list[tuple[Point, Task]]:
    return [(point, Task.of(point)) for point in points(read(CHEAP)).points]


def test_plans_are_those_of_one_command_byte_for_byte() -> None:
    asked = tasks()
    rows = {row.id: row for row in run([task for _, task in asked], Wanted(jobs=2))}
    assert len(rows) == len(asked) == 4
    statuses = {(point.job["gpus"], rows[point.id].status) for point, _ in asked}
    assert statuses == {(8, Status.PLANNED), (12, Status.REFUSED)}
    assert "gpus: does not fill whole nodes" in rows[asked[-1][0].id].reason
    for point, _ in asked[::2]:
        plan = symconfig.plan(**point.job)
        values = rows[point.id].values
        assert values["plan_sha256"] == hashlib.sha256(plan.plan.to_json().encode()).hexdigest()
        assert values["step_s"] == plan.best.predicted.step_s


def pretend(monkeypatch: pytest.MonkeyPatch, marks: Path, killed: list[str], once: list[str]) -> None:
    script = PRETENDS.format(marks=f"{marks}/", killed=killed, once=once)
    monkeypatch.setattr(local, "WORKER", ("-c", script))


def test_a_worker_that_dies_takes_only_its_own_task_and_that_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    work = [Task(f"t{number}", "{}", "{}", "{}") for number in range(12)]
    pretend(monkeypatch, tmp_path, killed=["t0", "t5"], once=["t1", "t7"])
    rows = list(run(work, Wanted(jobs=2)))
    assert sorted(row.id for row in rows) == sorted(task.id for task in work)
    lost = {row.id: row.reason for row in rows if row.status is Status.LOST}
    assert lost == dict.fromkeys(
        ("t0", "t5"), f"its worker died {TRIES} times: killed by SIGKILL, perhaps for want of memory"
    )


def test_every_task_is_lost_and_named_where_no_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "WORKER", ("-c", "raise SystemExit(7)"))
    rows = list(run([Task("a", "", "", ""), Task("b", "", "", "")], Wanted(jobs=2)))
    assert [(row.id, row.status) for row in sorted(rows, key=lambda row: row.id)] == [
        ("a", Status.LOST),
        ("b", Status.LOST),
    ]
    assert all("ended with status 7" in row.reason for row in rows)


def test_closing_the_engine_ends_its_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, tmp_path, [], [])
    started = []
    real = local._process

    def process(errors: object) -> object:
        started.append(real(errors))  # type: ignore[arg-type]
        return started[-1]

    monkeypatch.setattr(local, "_process", process)
    rows = run([Task(f"t{number}", "", "", "") for number in range(9)], Wanted(jobs=2))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert len(started) == 2
    assert all(one.poll() is not None for one in started)


def test_a_task_that_breaks_the_planner_is_a_row() -> None:
    (row,) = run([Task("x", "no json", "{}", "{}")], Wanted(jobs=1))
    assert row.status is Status.DEFECT
    assert "ValidationError" in row.reason
