"""docs/tutorials: each prints what it says, and runs the files of examples/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import outputs as jobs

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PAGES = sorted(jobs.TUTORIALS.glob("*.md"))


@pytest.mark.usefixtures("warm_symconfig")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_tutorial_prints_what_it_says(path: Path) -> None:
    assert jobs.run(path).text == path.read_text(encoding="utf-8"), "python -m tools outputs"


def test_there_is_one_for_each_use_and_they_run_every_example() -> None:
    assert [path.stem for path in PAGES] == [
        "before-training",
        "existing-pipeline",
        "post-training",
        "when-something-changes",
    ]
    lines = [line for path in PAGES for line in path.read_text(encoding="utf-8").splitlines()]
    commands = "\n".join(line for line in lines if line.startswith("$ "))
    run = set(re.findall(r"(?:python|plan) (\S+\.(?:py|yaml))", commands))
    assert run >= {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".yaml")}
