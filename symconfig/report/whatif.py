"""The answer of `symconfig whatif --vary`: a table of the ranges for each name, and the same as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from symconfig.format import count, seconds, several
from symconfig.report.grid import Block, Grid
from symconfig.runs.whatif.whatif import Line, Vary, WhatIf


def blocks(what_if: WhatIf) -> list[Block]:
    """Return the report: the plan now, a table of the best plans for each varied name, and the number of searches."""
    weighed = (
        f"{several(what_if.plans, 'plan')} were made, which weighed {count(what_if.weighed)} candidates. Between two "
        "values that were planned and have the same best plan, no other plan was looked for."
    )
    shown: list[Block] = [f"now: {what_if.now.name}"]
    return [*shown, *map(line, what_if.lines), weighed]


def line(one: Line) -> Grid:
    """Return the table of spans of one varied name."""
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


def to_dict(what_if: WhatIf) -> dict[str, Any]:
    """Return the ranges as JSON, symconfig.whatif/1; `plan` is None where none fits."""
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
