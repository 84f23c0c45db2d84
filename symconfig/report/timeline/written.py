"""What the schedule adds to the files of a plan: a section of its report, and the trace."""

from __future__ import annotations

from symconfig.errors import InputError
from symconfig.plans.plan import Plan
from symconfig.report.timeline.compared import most_bytes
from symconfig.report.timeline.section import section
from symconfig.report.timeline.seen import compared, seen
from symconfig.report.timeline.trace import trace
from symconfig.solve.restore import retraced

TRACE = "trace.json"


def written(plan: Plan) -> tuple[str, str | None]:
    """The section, and the trace; of a plan that cannot be simulated a section that says why, and no trace."""
    try:
        with retraced("plan.json"):
            chart, found = seen(plan, plan.best), compared(plan, plan.best)
    except InputError as error:
        return "\n\n".join(("## Schedule", "It could not be simulated:", *map(str, error.problems))) + "\n", None
    return section(chart, found, most_bytes(plan, plan.best)), trace(chart)
