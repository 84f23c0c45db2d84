"""A sweep that is killed, with its processes: what is done stays done, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
