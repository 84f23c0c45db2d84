"""The walk of the search in docs/contributing.md names files and functions that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_STEPS = 25


def test_every_step_from_the_job_to_the_plan_is_there() -> None:
    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    walk = text.partition("## From the job to the plan")[2].partition("\n## ")[0]
    assert 10 <= len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) <= MOST_STEPS
    steps = re.findall(r"`([\w/]+\.py): ([\w.]+)`", walk)
    assert len(steps) > 15
    for file, name in steps:
        scope = ast.parse((ROOT / "symconfig" / file).read_text(encoding="utf-8")).body
        for part in name.split("."):
            found = [one for one in scope if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == part]
            assert found, f"{file} has no {name}"
            scope = found[0].body
