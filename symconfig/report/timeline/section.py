"""What the schedule adds to the files of a plan: a section of REPORT.md, and the trace."""

from __future__ import annotations

from symconfig.errors import InputError
from symconfig.plans.plan import Plan
from symconfig.report.grid import markdown_rows
from symconfig.report.timeline.chart import Chart
from symconfig.report.timeline.compared import refusals, runnable, table
from symconfig.report.timeline.seen import compared, seen
from symconfig.report.timeline.trace import trace
from symconfig.solve.restore import retraced
from symconfig.solve.schedules import Compared

TRACE = "trace.json"


def written(plan: Plan) -> tuple[str, str | None]:
    """Return the section and the trace; of a plan that cannot be simulated a section that says why, and no trace."""
    try:
        with retraced("plan.json"):
            chart, others = seen(plan, plan.best), compared(plan, plan.best)
    except InputError as error:
        return "\n\n".join(("## Schedule", "It could not be simulated:", *map(str, error.problems))) + "\n", None
    shown = runnable(others, plan.best.target.backend)
    return section(chart, shown), trace(chart)


def section(chart: Chart, compared: Compared) -> str:
    """Write the section in Markdown. compared: the schedules that are shown beside the plan's."""
    where = "`trace.json` holds it for https://ui.perfetto.dev; `symconfig explain --timeline` compares schedules."
    parts = ["## Schedule", *chart.notes, where]
    if compared.able:
        grid = table(compared.able)
        parts += [
            f"{grid.title}:",
            "\n".join(markdown_rows(grid)),
            *refusals((each.schedule, each.why) for each in compared.refused),
        ]
    return "\n\n".join(parts) + "\n"
