"""What the schedule adds to the files of a plan: a section of REPORT.md, and the trace."""

from __future__ import annotations

from symconfig.errors import InputError
from symconfig.plans.plan import Plan
from symconfig.report.grid import LEAST_WIDTH
from symconfig.report.timeline.seen import seen
from symconfig.report.timeline.terminal import drawing
from symconfig.report.timeline.trace import trace
from symconfig.solve.restore import retraced

TRACE = "trace.json"


def written(plan: Plan) -> tuple[str, str | None]:
    """Return the section and the trace; of a plan that cannot be simulated a section that says why, and no trace."""
    try:
        with retraced("plan.json"):
            chart = seen(plan, plan.best)
    except InputError as error:
        return "\n\n".join(("## Schedule", "It could not be simulated:", *map(str, error.problems))) + "\n", None
    drawn = f"```\n{drawing(chart, LEAST_WIDTH)}\n```"
    where = (
        "`trace.json` holds it for https://ui.perfetto.dev, and `symconfig explain --timeline` draws other schedules."
    )
    return "\n\n".join(("## Schedule", *chart.notes, drawn, where)) + "\n", trace(chart)
