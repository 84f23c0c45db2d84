"""docs/reference/tables.md has the columns that the code writes; docs/how-to/size-and-sweep.md shows a sweep."""

from __future__ import annotations

import re
from pathlib import Path

from symconfig.runs.sweep.job import swept
from tests.runs.sweep.support import read
from tools.generate import is_current

DOCS = Path(__file__).parents[3] / "docs"


def test_the_columns_are_those_of_the_tables() -> None:
    text = (DOCS / "reference" / "tables.md").read_text(encoding="utf-8")
    assert is_current("sweep"), "python -m tools generate sweep"
    assert "| `step_s` | s: a steady optimizer step |" in text


def test_its_example_is_a_sweep() -> None:
    text = (DOCS / "how-to" / "size-and-sweep.md").read_text(encoding="utf-8")
    example = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert example is not None
    found = read(example[1])
    assert f"{len(found.points)} plans of {found.combinations} combinations" in text


def test_every_field_of_a_job_but_its_training_may_be_swept() -> None:
    assert {"model", "cluster", "gpus", "pins", "pins.tp", "limits.memory_margin", "packing"} <= set(swept())
    assert not {"training", "schema"} & set(swept())
