"""The answer of `symconfig whatif --change`: what each change costs who keeps the old strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symconfig.format import count, gib
from symconfig.report.grid import Block, Grid, present
from symconfig.report.table import headline
from symconfig.runs.whatif.change import Case, Outcome
from symconfig.solve.candidate import degrees

_WORDS = (
    "kept: the old plan's degrees, micro-batch, ZeRO stage and recompute, as pins of the changed job; all else is "
    "chosen for it. replanned: everything is chosen anew. gain: tokens a second of the one over the other."
)


def blocks(cases: Sequence[Case]) -> list[Block]:
    """Return a table with a row per change, and why a kept plan or a new search has no result."""
    before = cases[0].before.plan
    assert before is not None
    heads = ("change", "kept", "tokens/s", "GiB", "replanned", "tokens/s", "GiB", "gain")
    rows = tuple(map(_row, cases))
    table = Grid(heads, rows, left=(0, 1, 4), title="When the job changes", fixed=tuple(range(8)))
    why = [f"{case.name}: kept, {case.kept.why}." for case in cases if case.kept.plan is None]
    why += [
        f"{case.name}: kept, it runs only with {' and '.join(case.kept.eased)}."
        for case in cases
        if set(case.kept.eased) - set(case.replanned.eased)
    ]
    none = [f"{case.name}: planned anew, {case.replanned.why}." for case in cases if case.replanned.plan is None]
    strategy = f"Before: {degrees(before.fastest)}, {_speed(cases[0].before)} tokens/s."
    return present(headline(before), strategy, table, "\n".join([*why, *none]), _WORDS)


def _row(case: Case) -> tuple[str, ...]:
    kept = "runs again" if case.kept.plan is None else "runs safely"
    gain = f"{case.gain:.3f}" if case.gain is not None else kept if case.replanned.plan else ""
    return (case.name, *_cells(case.kept), *_cells(case.replanned), gain)


def _cells(one: Outcome) -> tuple[str, str, str]:
    if one.plan is None:
        return ("does not run", "", "")
    best = one.plan.fastest
    return (degrees(best), _speed(one), gib(best.predicted.device_bytes))


def _speed(one: Outcome) -> str:
    return count(round(one.tokens_per_s or 0.0))


def to_dict(cases: Sequence[Case]) -> dict[str, Any]:
    """Return the JSON, symconfig.adaptability/1."""
    before = cases[0].before.plan
    assert before is not None
    return {
        "schema": "symconfig.adaptability/1",
        "before": before.fastest.to_dict(),
        "changes": [
            {
                "change": dict(case.change),
                "pins": dict(case.pins),
                "kept": _plain(case.kept),
                "replanned": _plain(case.replanned),
                "gain": case.gain,
            }
            for case in cases
        ],
    }


def _plain(one: Outcome) -> dict[str, Any]:
    plan = None if one.plan is None else one.plan.fastest.to_dict()
    return {"plan": plan, "tokens_per_s": one.tokens_per_s, "why": one.why or None, "only_with": list(one.eased)}
