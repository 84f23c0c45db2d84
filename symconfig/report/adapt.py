"""What adapting somebody's files came to, beside the diff."""

from __future__ import annotations

from symconfig.existing.adapt.draft import Adapted
from symconfig.report.grid import Block, present, titled


def blocks(outcome: Adapted, plan: str) -> list[Block]:
    """Return the report of an adaptation: changes, what was not done, errors of its audit, the command that judges an
    old checkpoint (only if something changed), notes; empty parts are left out. plan: the plan's file as the user named
    it, for commands.
    """
    loads = f"Whether an old checkpoint loads: symconfig checkpoint DIR --plan {plan}" if outcome.changes else ""
    return present(
        titled("Changed", (f"{change}." for change in outcome.changes)),
        titled("Not done", (f"{item}." for item in outcome.unplaced)),
        titled("An audit of the result finds errors", outcome.flaws),
        loads,
        titled("Worth knowing", outcome.notes),
    )
