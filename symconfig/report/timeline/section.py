"""The schedule as a section of REPORT.md."""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.report.grid import Grid
from symconfig.report.timeline.chart import Chart
from symconfig.report.timeline.compared import refused, table
from symconfig.report.timeline.terminal import drawing
from symconfig.solve.schedules import Scheduled

WIDTH = 120


def section(chart: Chart, rows: Sequence[Scheduled], most_bytes: float) -> str:
    """Markdown. rows: all schedules; none where there is one stage."""
    drawn = f"```\n{drawing(chart, WIDTH)}\n```"
    where = "`trace.json` holds it for https://ui.perfetto.dev, and `symconfig timeline` draws it as a picture."
    parts = ["## Schedule", *chart.notes, drawn, where]
    if rows:
        parts += [_markdown(table(rows, most_bytes)), *refused(rows)]
    return "\n\n".join(parts) + "\n"


def _markdown(grid: Grid) -> str:
    rule = "|".join("---" if column in grid.left else "---:" for column in range(len(grid.headers)))
    rows = ["| " + " | ".join(row) + " |" for row in grid.rows]
    return "\n".join((f"{grid.title}:", "", "| " + " | ".join(grid.headers) + " |", f"|{rule}|", *rows))
