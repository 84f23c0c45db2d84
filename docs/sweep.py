"""Puts the columns of a sweep's table and the recorded speed of sweeps into docs/sweep.md: `python docs/sweep.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from symconfig.runs.sweep.columns import COLUMNS, Column

PAGE = Path(__file__).with_suffix(".md")
RECORD = PAGE.parent.parent / "benchmarks" / "sweep.json"
TABLE = re.compile(r"(<!-- columns -->\n)(.*?)(\n<!-- end of columns -->)", re.DOTALL)
SPEED = re.compile(r"(<!-- speed -->\n)(.*?)(<!-- end of speed -->)", re.DOTALL)


def columns(every: Sequence[Column] = COLUMNS) -> str:
    """One row a column."""
    rows = [f"| `{column.name}` | {column.kind} | {column.unit} | {column.says} |" for column in every]
    return "\n".join(["| column | kind | unit | what it is |", "|---|---|---|---|", *rows])


def speed(runs: Mapping[str, Any]) -> str:
    """Return a table of what benchmarks/sweep.py has recorded, one row a run."""
    rows = ["| run | plans | wall s | plans/s | CPU s a plan |", "|---|--:|--:|--:|--:|"]
    for name, run in runs.items():
        if name != "machine":
            cpu = f"{run['cpu_s_per_plan']:.2f}" if "cpu_s_per_plan" in run else ""
            rows.append(f"| {name} | {run['plans']:,} | {run['wall_s']:.1f} | {run['plans_per_s']:.2f} | {cpu} |")
    return "\n".join(rows) + "\n"


def refreshed(text: str) -> str:
    """Return the page with the columns of now and the speed that was recorded last."""
    runs = json.loads(RECORD.read_text(encoding="utf-8"))
    text = TABLE.sub(lambda match: match[1] + columns() + match[3], text)
    return SPEED.sub(lambda match: match[1] + speed(runs) + match[3], text)


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
