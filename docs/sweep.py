"""Puts the columns of a sweep's table, as the code has them, into docs/sweep.md: `python docs/sweep.py`."""

from __future__ import annotations

import re
from pathlib import Path

from symconfig.runs.sweep.columns import COLUMNS

PAGE = Path(__file__).with_suffix(".md")
TABLE = re.compile(r"(<!-- columns -->\n)(.*?)(\n<!-- end of columns -->)", re.DOTALL)


def columns() -> str:
    """One row a column."""
    rows = [f"| `{column.name}` | {column.kind} | {column.unit} | {column.says} |" for column in COLUMNS]
    return "\n".join(["| column | kind | unit | what it is |", "|---|---|---|---|", *rows])


def refreshed(text: str) -> str:
    """The page with the columns of now."""
    return TABLE.sub(lambda match: match[1] + columns() + match[3], text)


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
