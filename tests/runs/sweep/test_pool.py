"""Where the tasks of a sweep run: real processes, also ones that die."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from multiprocessing import active_children
from pathlib import Path

import pytest

import symconfig
from symconfig.runs.sweep import run as sweeping
from symconfig.runs.sweep.job import Point
from symconfig.runs.sweep.run import Row, Status, Task, run_tasks
from tests.runs.sweep.support import read

CHEAP = """\
job: {cluster: h100, seq_length: 2048, global_batch_size: 16, pins: {pp: 1}}
sweep:
  model: [qwen2.5-7b-lora, llama2-7b]
  gpus: [8, 12]
"""


def tasks() -> list[tuple[Point, Task]]:
    return [(point, Task.of(point)) for point in read(CHEAP).points]


def simple(number: int) -> list[Task]:
    return [Task(f"t{each}", "{}", "{}", "{}") for each in range(number)]


# In the place of planning; a process of the pool finds them by their names.
def dying(task: Task) -> Row:
    """Die of t0 and t5 always, and of t1 and t7 the first time unless t0 or t5 died before, as files say."""
    beside = {"t0": "t1", "t5": "t7"}
    once = Path(f"died-of-{beside.get(task.id, task.id)}")
    if task.id in beside or (task.id in beside.values() and not once.exists()):
        once.touch()
        os._exit(3)
    return Row(task.id, Status.PLANNED)


def printing(task: Task) -> Row:
    print("a library prints")
    return Row(task.id, Status.PLANNED)


def test_plans_are_those_of_one_command_byte_for_byte() -> None:
    asked = tasks()
    rows = {row.id: row for row in run_tasks([task for _, task in asked], jobs=2)}
    assert len(rows) == len(asked) == 4
    statuses = {(point.job["gpus"], rows[point.id].status) for point, _ in asked}
    assert statuses == {(8, Status.PLANNED), (12, Status.REFUSED)}
    assert "gpus: does not fill whole nodes" in rows[asked[-1][0].id].reason
    for point, _ in asked[::2]:
        plan = symconfig.plan(**point.job)
        values = rows[point.id].values
        assert values["plan_sha256"] == hashlib.sha256(plan.plan.to_json().encode()).hexdigest()
        assert values["step_s"] == plan.best.predicted.step_s


def test_a_task_that_kills_its_worker_is_named_and_no_other_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweeping, "done", dying)
    rows = list(run_tasks(simple(12), jobs=2))
    assert sorted(row.id for row in rows) == sorted(task.id for task in simple(12))
    lost = {row.id: row.reason for row in rows if row.status is Status.LOST}
    assert lost == dict.fromkeys(("t0", "t5"), "its worker process was killed, perhaps for want of memory")


def test_what_a_worker_prints_is_no_answer(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sweeping, "done", printing)
    assert len(list(run_tasks(simple(2), jobs=1))) == 2
    assert capfd.readouterr().out == ""


def test_closing_it_ends_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "done", printing)
    before = set(active_children())
    rows = run_tasks(simple(9), jobs=2)
    next(rows)
    assert len(set(active_children()) - before) == 2
    rows.close()  # type: ignore[attr-defined]
    assert set(active_children()) <= before


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    text = 'import symconfig\nsymconfig.sweep({"job": {"model": "llama2-7b", "cluster": "h100", "gpus": 8}, '
    (tmp_path / "mine.py").write_text(text + '"sweep": {"global_batch_size": [8]}}, "t.csv")\n', encoding="utf-8")
    there = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    ended = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, env=there, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1
    assert 'no worker process starts. Try: put the call under `if __name__ == "__main__":`' in ended.stderr
