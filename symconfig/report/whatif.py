"""The answers of `symconfig whatif`: the best plan over ranges of a value, and what a kept plan loses to changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from symconfig.format import count, gib, seconds, several
from symconfig.plans.plan import Candidate
from symconfig.report.grid import Block, Grid, present
from symconfig.report.table import headline
from symconfig.runs.whatif import Case, Line, Vary, WhatIf
from symconfig.solve.candidate import degrees


def ranges(what_if: WhatIf) -> list[Block]:
    """Return the report of --vary: the plan now, a table for each varied name, and the number of searches."""
    searched = f"{several(what_if.plans, 'plan')} made; none between two values that have the same best plan."
    return [f"now: {what_if.now.name}", *map(line, what_if.lines), searched]


def line(one: Line) -> Grid:
    """Return the table of one varied value's ranges: both ends, the best plan, and its step at either end in s ("":
    none).
    """
    rows = (
        {
            "from": _value(one.vary, span.low),
            "to": _value(one.vary, span.high),
            "best plan": span.answer.name,
            "step s at from": _seconds(span.answer.step_s),
            "at to": _seconds(span.high_s),
        }
        for span in one.spans
    )
    known = f"in steps of {one.vary.step}" if one.vary.whole else "a factor, borders to 0.001 of it"
    title = f"{one.vary.name}, {known}"
    return Grid.of(rows, title, words=("best plan",), fixed=("from", "to", "best plan"))


def _value(vary: Vary, value: float) -> str:
    return count(round(value)) if vary.whole else f"{value:.4g}x"


def _seconds(value: float | None) -> str:
    return "" if value is None else seconds(value)


def ranges_data(what_if: WhatIf) -> dict[str, Any]:
    """Return the JSON of --vary, symconfig.whatif/1: the plan now, for each varied name its ranges with plan (None if
    none fits) and step at both ends, and the number of searches.
    """
    return {
        "schema": "symconfig.whatif/1",
        "now": asdict(what_if.now),
        "lines": [
            {
                "name": one.vary.name,
                "factor": not one.vary.whole,
                "step": one.vary.step or None,
                "now": one.vary.now,
                "ranges": [
                    {
                        "from": span.low,
                        "to": span.high,
                        "plan": span.answer.name if span.answer.step_s is not None else None,
                        "step_s_from": span.answer.step_s,
                        "step_s_to": span.high_s,
                    }
                    for span in one.spans
                ],
            }
            for one in what_if.lines
        ],
        "searches": what_if.plans,
    }


def changes(cases: Sequence[Case]) -> list[Block]:
    """Return the report of --change: headline, the strategy before, a row per change, and why a kept plan or a new
    search has no result, or the kept one a risk.
    """
    old = cases[0].old
    heads = ("change", "kept", "tokens/s", "GiB", "replanned", "tokens/s", "GiB", "gain")
    table = Grid(heads, tuple(map(_row, cases)), left=(0, 1, 4), title="When the job changes", fixed=tuple(range(8)))
    why = [f"{case.name}: kept, the plan {case.kept}." for case in cases if case.kept and not case.kept.safe]
    why += [f"{case.name}: planned anew, {case.why}." for case in cases if case.new is None]
    strategy = f"Before: {degrees(old.best)}, {count(round(old.best.tokens_per_s))} tokens/s."
    legend = "kept: all choices of the plan. gain: tokens/s of replanned over kept."
    return present(headline(old), strategy, table, "\n".join(why), legend)


def _row(case: Case) -> tuple[str, ...]:
    anew = "" if case.new is None else "runs again" if _kept(case) is None else "runs safely"
    gain = f"{case.gain:.3f}" if case.gain is not None else anew
    return (case.name, *_cells(_kept(case)), *_cells(case.new.best if case.new else None), gain)


def _kept(case: Case) -> Candidate | None:
    return case.kept.candidate if case.kept is not None and case.kept.fits else None


def _cells(one: Candidate | None) -> tuple[str, str, str]:
    if one is None:
        return ("does not run", "", "")
    return (degrees(one), count(round(one.tokens_per_s)), gib(one.predicted.device_bytes))


def changes_data(cases: Sequence[Case]) -> dict[str, Any]:
    """Return the JSON of --change, symconfig.adaptability/1: the plan before, and of each change the kept and the
    replanned result, why it has no plan (or, kept, a risk), and the gain.
    """

    def outcome(one: Candidate | None, why: str) -> dict[str, Any]:
        return {"plan": one and one.to_dict(), "tokens_per_s": one and one.tokens_per_s, "why": why or None}

    return {
        "schema": "symconfig.adaptability/1",
        "before": cases[0].old.best.to_dict(),
        "changes": [
            {
                "change": dict(case.change),
                "kept": outcome(_kept(case), str(case.kept) if case.kept and not case.kept.safe else ""),
                "replanned": outcome(case.new.best if case.new else None, case.why),
                "gain": case.gain,
            }
            for case in cases
        ],
    }
