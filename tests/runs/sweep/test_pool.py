"""Where the tasks of a sweep run: real processes, also ones that die; what is done stays done in its journal."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path

import pytest

import symconfig
from symconfig.errors import InputError
from symconfig.runs.sweep import run as sweeping
from symconfig.runs.sweep.job import Point
from symconfig.runs.sweep.run import Row, Status, Task, appending, read_journal, run_tasks
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


ROWS = [Row(f"{number:016x}", Status.PLANNED, "1+a", "", {"step_s": 1.5 + number}) for number in range(3)]


def add(path: Path, *rows: Row) -> None:
    with appending(path) as append:
        for row in rows:
            append(row)


def test_rows_come_back_a_line_each(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    assert read_journal(path) == {}
    add(path, *ROWS)
    assert list(read_journal(path).values()) == ROWS
    assert [json.loads(line)["id"] for line in path.read_text(encoding="utf-8").splitlines()] == [r.id for r in ROWS]


def test_a_journal_cut_anywhere_keeps_its_whole_rows_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    add(path, *ROWS)
    content = path.read_bytes()
    ends = [number + 1 for number, byte in enumerate(content) if byte == ord("\n")]
    for cut in (0, 5, *(end + more for end in ends for more in (-2, 0, 1))):
        path.write_bytes(content[:cut])
        whole = ROWS[: sum(end <= cut for end in ends)]
        assert list(read_journal(path).values()) == whole
        add(path, ROWS[2])
        assert list(read_journal(path).values()) == [*whole[:2], ROWS[2]]


def test_a_line_that_is_no_row_is_passed_over_and_the_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    add(path, *ROWS)
    lines = path.read_bytes().splitlines(keepends=True)
    for wrong in (b"\n", b"{}\n", b"[1]\n", lines[1].replace(b"planned", b"plannd"), lines[1][:40] + b"\n", b"\xff\n"):
        path.write_bytes(b"".join([lines[0], wrong, lines[2]]))
        assert list(read_journal(path).values()) == [ROWS[0], ROWS[2]]


def test_rows_of_another_planner_stay_apart(tmp_path: Path) -> None:
    path, other = tmp_path / "x.journal", Row(ROWS[0].id, Status.INFEASIBLE, "2+b", "nothing fits")
    add(path, *ROWS)
    add(path, other)
    assert read_journal(path)[ROWS[0].id, "1+a"] == ROWS[0]
    assert read_journal(path)[ROWS[0].id, "2+b"] == other


def test_fresh_forgets(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    add(path, *ROWS)
    with appending(path, fresh=True):
        pass
    assert read_journal(path) == {}


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"), appending(tmp_path / "no" / "x.journal"):
        pass


SWEEP = """\
job: {model: qwen2.5-7b-lora, cluster: h100, gpus: 8}
sweep:
  global_batch_size: [8, 16, 24, 32]
  seq_length: [1024, 2048]
"""


def lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in listed.read_text(encoding="ascii").split()] if listed.exists() else []


def alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds processes in Linux's way")
def test_a_sweep_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "SWEEP.yaml").write_text(SWEEP, encoding="utf-8")
    words = [sys.executable, "-m", "symconfig", "sweep", "SWEEP.yaml", "--jobs", "2", "--json"]
    root = str(Path(__file__).parents[3])
    there = {**os.environ, "PYTHONPATH": root}
    process = subprocess.Popen(words, cwd=tmp_path, env=there, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    journal = tmp_path / "SWEEP.csv.journal"
    until = time.monotonic() + 60
    while lines(journal) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    done = lines(journal)
    assert 2 <= done < 8
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "SWEEP.csv").exists()
    while any(map(alive, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(workers) >= 2
    assert not any(map(alive, workers))
    ended = subprocess.run(words, cwd=tmp_path, env=there, capture_output=True, timeout=300, check=True)
    data = json.loads(ended.stdout)
    assert (data["known"], data["done"], data["counts"]["planned"]) == (done, 8, 8)
