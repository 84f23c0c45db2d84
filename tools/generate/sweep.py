"""Puts the columns of a sweep's table and the recorded speed of sweeps into docs/sweep.md: `python docs/sweep.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from written import ROOT, fill, table

from symconfig.runs.sweep.columns import COLUMNS, Column

PAGE = Path(__file__).with_suffix(".md")
RECORD = ROOT / "benchmarks" / "sweep.json"


def columns(every: Sequence[Column] = COLUMNS) -> str:
    """One row a column."""
    rows = ((f"`{column.name}`", column.kind, column.unit, column.says) for column in every)
    return table(("column", "kind", "unit", "what it is"), rows)


def speed(runs: Mapping[str, Any]) -> str:
    """Return a table of what benchmarks/sweep.py has recorded, one row a run."""
    rows = (
        (name, f"{run['plans']:,}", f"{run['wall_s']:.1f}", f"{run['plans_per_s']:.2f}",
         f"{run['cpu_s_per_plan']:.2f}" if "cpu_s_per_plan" in run else "")
        for name, run in runs.items()
        if name != "machine"
    )  # fmt: skip
    return table(("run", "plans", "wall s", "plans/s", "CPU s a plan"), rows, range(1, 5))


def parts() -> dict[str, str]:
    """Return the columns of now, and the speed that was recorded last."""
    return {"columns": columns(), "speed": speed(json.loads(RECORD.read_text(encoding="utf-8")))}


if __name__ == "__main__":
    fill(PAGE, parts())
