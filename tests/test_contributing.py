"""docs/contributing.md: its map is that of the code, and the commits that it tells of are in the history."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tools.generate import rooms
from tools.pages import filled

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "contributing.md"
TOLD = re.compile(r'\*\*As it was done\*\*: ([0-9a-f]{8})\s"([^"]+)"')


def test_the_map_is_that_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert filled(text, rooms.rooms()) == text, "python -m tools generate rooms"


def test_commits_that_are_told_of_are_in_the_history() -> None:
    told = TOLD.findall(PAGE.read_text(encoding="utf-8"))
    assert len(told) >= 5
    for commit, subject in told:
        done = subprocess.run(["git", "show", "-s", "--format=%s", commit], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            pytest.skip("there is no history here")
        assert done.stdout.strip() == " ".join(subject.split())
