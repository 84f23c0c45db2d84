"""What the schedule adds to the files of a plan: a section of REPORT.md, and the trace."""

from __future__ import annotations

from symconfig.errors import InputError
from symconfig.plans.plan import Plan
from symconfig.report.grid import markdown_rows
from symconfig.report.timeline.chart import stage_rows
from symconfig.report.timeline.seen import seen
from symconfig.report.timeline.trace import trace
from symconfig.solve.restore import retraced

TRACE = "trace.json"


def written(plan: Plan) -> tuple[str, str | None]:
    """Return (Markdown section, trace); the section says why and the trace is None if the plan cannot be simulated."""
    try:
        with retraced("plan.json"):
            chart = seen(plan, plan.best)
    except InputError as error:
        return "\n\n".join(("## Schedule", "It could not be simulated:", *map(str, error.problems))) + "\n", None
    rows = "\n".join(markdown_rows(stage_rows(chart)))
    where = "`trace.json` has every event, for https://ui.perfetto.dev."
    return "\n\n".join(("## Schedule", *chart.notes, rows, where)) + "\n", trace(chart)
