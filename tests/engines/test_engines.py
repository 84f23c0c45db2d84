"""Sweeps through the real Ray and Dask, on this machine: the same bytes as the local engine, and workers that die.

Their packages are in requirements.txt; where the engines are not installed they are skipped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from symconfig.runs.sweep.engines import TRIES, Wanted, engines, run
from symconfig.runs.sweep.planner import planner
from symconfig.runs.sweep.task import Row, Status, Task

psutil = pytest.importorskip("psutil")
ENGINES = ("ray", "dask")
SWEEP = """\
job: {cluster: h100, seq_length: 2048, pins: {pp: 1}}
sweep:
  model: [qwen2.5-7b-lora, llama2-7b]
  gpus: [8, 12, 16]
  global_batch_size: [16, 32]
"""
# How the process of a worker shows in the list of processes.
WORKERS = {"ray": "ray::", "dask": "multiprocessing.spawn"}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    pytest.importorskip({"ray": "ray", "dask": "distributed"}[name])
    return name


def tasks(number: int) -> list[Task]:
    return [Task(f"t{index}", "", "", "") for index in range(number)]


def answering(monkeypatch: pytest.MonkeyPatch, engine: str, marks: Path, deadly: str = "", slow_s: float = 0.0) -> None:
    """Put something in the place of planning: it takes `slow_s`, writes a mark, and dies of the task `deadly`."""
    this = planner()

    def done(task: Task) -> Row:
        if task.id == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(slow_s)
        with (marks / task.id).open("a") as mark:
            mark.write(f"{os.getpid()}\n")
        return Row(task.id, Status.PLANNED, this)

    monkeypatch.setattr(engines()[engine], "done", done)


def workers(engine: str) -> list[int]:
    """Processes of workers that this process has started, by their parents."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any(WORKERS[engine] in word for word in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_the_same_table_as_the_local_engine(engine: str, tmp_path: Path) -> None:
    (tmp_path / "SWEEP.yaml").write_text(SWEEP, encoding="utf-8")
    for name in ("local", engine):
        words = [
            sys.executable,
            "-m",
            "symconfig",
            "sweep",
            "SWEEP.yaml",
            "--engine",
            name,
            "--jobs",
            "2",
            "--out",
            f"{name}.csv",
        ]
        ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stderr
    assert (tmp_path / f"{engine}.csv").read_bytes() == (tmp_path / "local.csv").read_bytes()


def test_a_worker_killed_in_mid_sweep_loses_nothing(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, engine, tmp_path, slow_s=0.3)
    work = tasks(24)
    rows: Iterator[Row] = run(work, Wanted(engine, jobs=2))
    found = [next(rows) for _ in range(4)]
    busy = {int(mark.read_text(encoding="utf-8").split()[-1]) for mark in tmp_path.iterdir()} & set(workers(engine))
    assert busy
    os.kill(min(busy), signal.SIGKILL)
    found += rows
    assert sorted(row.id for row in found) == sorted(task.id for task in work)
    assert {row.status for row in found} == {Status.PLANNED}


def test_a_task_that_kills_its_workers_is_lost_and_named(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, engine, tmp_path, deadly="t3")
    found = {row.id: row for row in run(tasks(6), Wanted(engine, jobs=1))}
    assert len(found) == 6
    assert {name for name, row in found.items() if row.status is Status.LOST} == {"t3"}
    assert found["t3"].reason.startswith(f"its worker died {TRIES} times: ")


def test_stopping_early_leaves_no_process(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, engine, tmp_path, slow_s=0.2)
    rows = run(tasks(20), Wanted(engine, jobs=2))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert eventually(lambda: not workers(engine))
    assert len(list(tmp_path.iterdir())) < 20


def eventually(holds: Callable[[], bool], limit_s: float = 20.0) -> bool:
    until = time.monotonic() + limit_s
    while not holds() and time.monotonic() < until:
        time.sleep(0.1)
    return holds()


def test_a_cluster_that_is_not_there_is_said(engine: str) -> None:
    from symconfig.errors import FailedError

    with pytest.raises(FailedError, match="does not answer"):
        next(run(tasks(1), Wanted(engine, address="127.0.0.1:1")))


def test_a_dask_cluster_that_runs_already_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    answering(monkeypatch, "dask", tmp_path)
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        rows = list(run(tasks(5), Wanted("dask", address=cluster.scheduler_address)))
        assert len(rows) == 5
        assert cluster.scheduler.workers


def test_a_ray_cluster_that_loses_a_machine_in_mid_sweep_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    answering(monkeypatch, "ray", tmp_path, slow_s=0.3)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        other = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        work = tasks(20)
        rows = run(work, Wanted("ray", address=cluster.address))
        found = [next(rows) for _ in range(6)]
        cluster.remove_node(other, allow_graceful=False)
        found += rows
        assert sorted(row.id for row in found) == sorted(task.id for task in work)
        assert {row.status for row in found} == {Status.PLANNED}
        assert len({mark.read_text(encoding="utf-8").split()[0] for mark in tmp_path.iterdir()}) >= 2
    finally:
        cluster.shutdown()
