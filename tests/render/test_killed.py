"""A folder that is written over an older one while its writer is killed, at every system call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.render.files import File, Files, write
from symconfig.resources import MARKER
from tests.render.killed import NEW, inodes, older, state

ROOT = Path(__file__).resolve().parents[2]


def test_a_writer_that_is_killed_leaves_whole_files_and_the_marker(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.render.killed", str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    *kills, lived = map(json.loads, said.splitlines())
    assert not lived["killed"]
    assert (lived["state"], lived["marked"], lived["left"]) == ("new", False, [])
    assert len(kills) > 40
    for one in kills:
        assert one["killed"]
        assert one["same"], "the folder or a file of others' was replaced"
        assert one["beside"] == ["out"]
        assert one["next"] == "new"
        assert MARKER not in one["left"]
        assert one["marked"] or one["state"] != "mixed"
    states = [one["state"] for one in kills]
    assert states[0] == "old"
    assert set(states) == {"old", "mixed", "new"}


def test_two_writers_at_once_end_with_one_whole_result(tmp_path: Path) -> None:
    folder, other = tmp_path / "out", Files((*(File(item.path, "other\n") for item in NEW),))
    older(folder)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda files: write(files, folder, force=True), [other, NEW] * 12))
    assert len({(folder / path).read_text() for path in NEW.paths()}) == 1
    assert os.listdir(tmp_path) == ["out"]
    assert not [path for path in folder.rglob("*") if path.name.startswith(".symconfig-")]


def test_a_run_in_the_folder_goes_on(tmp_path: Path) -> None:
    """What a job has open, its log and its checkpoints, stays where it is while the files are replaced."""
    folder = tmp_path / "out"
    older(folder)
    before = inodes(folder)
    code = "import sys\nwith open('events.log', 'w') as log:\n    print(flush=True)\n    log.write(sys.stdin.read())\n"
    job = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    job.stdout.readline()
    write(NEW, folder, force=True)
    job.communicate(b"loss 2.5\n")
    assert (folder / "events.log").read_text() == "loss 2.5\n"
    assert before.items() <= inodes(folder).items()
    assert state(folder) == "new"


def test_planted_names_are_neither_followed_nor_touched(tmp_path: Path) -> None:
    secret, folder = tmp_path / "authorized_keys", tmp_path / "out"
    secret.write_text("mine\n")
    older(folder)
    staging = tmp_path / ".out.symconfig-new.1"
    staging.mkdir()
    (staging / ".journal").write_text("")
    for name in (".plan.json.part", "plan.json.part"):
        (folder / name).symlink_to(secret)
    write(NEW, folder, force=True)
    write(NEW, tmp_path / "*")
    assert secret.read_text() == "mine\n"
    assert sorted(os.listdir(staging)) == [".journal"]


def test_a_planted_marker_is_not_followed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    older(folder)
    (folder / MARKER).symlink_to(elsewhere)
    with pytest.raises(InputError, match="is a symbolic link in the way"):
        write(NEW, folder, force=True)
    assert not elsewhere.exists()
    assert state(folder) == "old"
