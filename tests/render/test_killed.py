"""A folder that is written over an older one while its writer is killed, at every change of the disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from symconfig.render import publish
from symconfig.render.files import File, Files, write
from tests.render.killing import NEW, older, state

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("how", ["swap", "journal"])
def test_a_writer_that_is_killed_leaves_the_old_files_or_the_new_ones(tmp_path: Path, how: str) -> None:
    """Where the system has no swap, files may be mixed until the next look at the folder, which ends what was begun."""
    command = [sys.executable, "-m", "tests.render.killed", str(tmp_path), how]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    *kills, lived = map(json.loads, said.splitlines())
    assert not lived["killed"]
    assert lived["state"] == "new"
    assert len(kills) > 20
    assert all(one["killed"] and one["next"] == "new" and one["beside"] == ["out"] for one in kills)
    states = [one["state"] for one in kills]
    assert states[0] == "old"
    assert set(states) == ({"old", "new"} if how == "swap" else {"old", "mixed", "new"})
    assert {one["settled"] for one in kills if one["state"] != "old"} == {"new"}


def test_two_writers_at_once_end_with_one_whole_result(tmp_path: Path) -> None:
    folder, other = tmp_path / "out", Files((*(File(item.path, "other\n") for item in NEW),))
    older(folder)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda files: write(files, folder, force=True), [other, NEW] * 12))
    assert len({(folder / path).read_text() for path in NEW.paths()}) == 1
    assert os.listdir(tmp_path) == ["out"]


def test_a_killed_writer_leaves_no_lock(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom symconfig.render import publish\n"
        f"with publish.alone(Path({str(folder)!r})):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    held = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, cwd=ROOT)
    assert held.stdout is not None
    assert held.stdout.readline() == b"held\n"
    held.kill()
    held.wait()
    write(NEW, folder)


def test_what_is_written_meanwhile_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's log that begins between the copy of the folder and the swap."""
    folder = tmp_path / "out"
    older(folder)
    real = publish._exchange

    def late(one: Path, other: Path) -> bool:
        (other / "events").mkdir()
        (other / "events" / "1").write_text("mine")
        return real(one, other)

    monkeypatch.setattr(publish, "_exchange", late)
    write(NEW, folder, force=True)
    assert (folder / "events" / "1").read_text() == "mine"
    assert state(folder) == "new"
