"""The pages of docs/jobs: each is run again as a person would, and prints what it says, no wider than its terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import outputs as jobs

ROOT = Path(__file__).resolve().parent.parent
CHECKED_S = re.compile(r"^((?:passed|failed|skipped) .*?)\b\d+\.\d{3}\b", re.MULTILINE)  # differ from run to run


def _steady(text: str) -> str:
    return CHECKED_S.sub(r"\1#.###", text)


@pytest.mark.usefixtures("warm_symconfig")
@pytest.mark.parametrize("path", jobs.pages(), ids=lambda path: path.stem)
def test_a_page_prints_what_it_says(path: Path) -> None:
    page = jobs.run(path)
    assert _steady(page.text) == _steady(path.read_text(encoding="utf-8"))
    *row, _ = jobs.row(path, page)
    assert f"| {' | '.join(row)} |" in jobs.INDEX.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", jobs.pages(), ids=lambda path: path.stem)
def test_no_line_of_a_page_is_wider_than_its_terminal(path: Path) -> None:
    for block in jobs.BLOCK.finditer(path.read_text(encoding="utf-8")):
        if block["kind"] == "console":
            wide = [line for line in block["text"].splitlines() if len(line) > jobs.WIDTH]
            assert not wide


def test_there_are_twelve_jobs_and_no_cluster_of_ones_own_takes_more_than_ten_lines() -> None:
    assert len(jobs.pages()) == 12
    for path in jobs.pages():
        for block in jobs.BLOCK.finditer(path.read_text(encoding="utf-8")):
            if (block["file"] or "").endswith("cluster.yaml"):
                assert len(block["text"].splitlines()) <= 10
