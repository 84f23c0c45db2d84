"""Puts the columns of a sweep's table into docs/sweep.md: `python docs/sweep.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from written import fill, table

from symconfig.runs.sweep.columns import COLUMNS, Column

PAGE = Path(__file__).with_suffix(".md")


def columns(every: Sequence[Column] = COLUMNS) -> str:
    """One row a column."""
    rows = ((f"`{column.name}`", column.kind, column.unit, column.says) for column in every)
    return table(("column", "kind", "unit", "what it is"), rows)


def parts() -> dict[str, str]:
    """Return the columns of now."""
    return {"columns": columns()}


if __name__ == "__main__":
    fill(PAGE, parts())
