"""The schedule as a section of REPORT.md."""

from __future__ import annotations

from symconfig.report.grid import Grid
from symconfig.report.timeline.chart import Chart
from symconfig.report.timeline.compared import refusals, table
from symconfig.report.timeline.terminal import drawing
from symconfig.solve.schedules import Compared

WIDTH = 120


def section(chart: Chart, found: Compared, most_bytes: float) -> str:
    """Markdown. found: all schedules."""
    drawn = f"```\n{drawing(chart, WIDTH)}\n```"
    where = "`trace.json` holds it for https://ui.perfetto.dev, and `symconfig timeline` draws it as a picture."
    parts = ["## Schedule", *chart.notes, drawn, where]
    if found.able:
        parts += [_markdown(table(found, most_bytes)), *refusals(found)]
    return "\n\n".join(parts) + "\n"


def _markdown(grid: Grid) -> str:
    rule = "|".join("---" if column in grid.left else "---:" for column in range(len(grid.headers)))
    rows = ["| " + " | ".join(row) + " |" for row in grid.rows]
    return "\n".join((f"{grid.title}:", "", "| " + " | ".join(grid.headers) + " |", f"|{rule}|", *rows))
