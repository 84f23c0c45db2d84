"""The answers of `symconfig whatif`: the best plan over ranges of a value, and what a kept plan loses to changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from symconfig.format import count, gib, seconds, several
from symconfig.report.grid import Block, Grid, present
from symconfig.report.table import headline
from symconfig.runs.whatif.change import Case, Outcome
from symconfig.runs.whatif.whatif import Line, Vary, WhatIf
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
    none fits) and step at both ends, and the numbers of searches and candidates.
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
        "candidates": what_if.weighed,
    }


def changes(cases: Sequence[Case]) -> list[Block]:
    """Return the report of --change: headline, the strategy before, a row per change, why a kept plan or a new search
    has no result, and which relaxed limits a kept plan needs beyond the new one's.
    """
    before = cases[0].before.plan
    assert before is not None
    heads = ("change", "kept", "tokens/s", "GiB", "replanned", "tokens/s", "GiB", "gain")
    table = Grid(heads, tuple(map(_row, cases)), left=(0, 1, 4), title="When the job changes", fixed=tuple(range(8)))
    why = [f"{case.name}: kept, {case.kept.why}." for case in cases if case.kept.plan is None]
    why += [
        f"{case.name}: kept, it runs only with {' and '.join(case.kept.relaxed)}."
        for case in cases
        if set(case.kept.relaxed) - set(case.replanned.relaxed)
    ]
    why += [f"{case.name}: planned anew, {case.replanned.why}." for case in cases if case.replanned.plan is None]
    strategy = f"Before: {degrees(before.fastest)}, {_speed(cases[0].before)} tokens/s."
    legend = "kept: degrees, micro-batch, ZeRO stage and recompute are pinned. gain: tokens/s of replanned over kept."
    return present(headline(before), strategy, table, "\n".join(why), legend)


def _row(case: Case) -> tuple[str, ...]:
    kept = "runs again" if case.kept.plan is None else "runs safely"
    gain = f"{case.gain:.3f}" if case.gain is not None else kept if case.replanned.plan else ""
    return (case.name, *_cells(case.kept), *_cells(case.replanned), gain)


def _cells(one: Outcome) -> tuple[str, str, str]:
    if one.plan is None:
        return ("does not run", "", "")
    return (degrees(one.plan.fastest), _speed(one), gib(one.plan.fastest.predicted.device_bytes))


def _speed(one: Outcome) -> str:
    return count(round(one.tokens_per_s or 0.0))


def changes_data(cases: Sequence[Case]) -> dict[str, Any]:
    """Return the JSON of --change, symconfig.adaptability/1: the fastest plan before, and of each change its pins, the
    kept and the replanned result, and the gain.
    """
    before = cases[0].before.plan
    assert before is not None

    def outcome(one: Outcome) -> dict[str, Any]:
        plan = None if one.plan is None else one.plan.fastest.to_dict()
        return {"plan": plan, "tokens_per_s": one.tokens_per_s, "why": one.why or None, "only_with": list(one.relaxed)}

    return {
        "schema": "symconfig.adaptability/1",
        "before": before.fastest.to_dict(),
        "changes": [
            {
                "change": dict(case.change),
                "pins": dict(case.pins),
                "kept": outcome(case.kept),
                "replanned": outcome(case.replanned),
                "gain": case.gain,
            }
            for case in cases
        ],
    }
