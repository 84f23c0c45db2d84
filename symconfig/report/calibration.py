"""What `symconfig calibrate` fitted, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symconfig.measured.calibrate import Calibration, SourceErrors
from symconfig.report.format import percent
from symconfig.report.grid import Block, Grid


def blocks(calibrations: Sequence[Calibration], remarks: Sequence[str]) -> list[Block]:
    """For each GPU type its constants and its errors; then what was left out, and why."""
    result: list[Block] = []
    for found in calibrations:
        result += [_constants(found), _errors(found), _summary(found)]
    return [*result, *(["\n".join(remarks)] if remarks else [])]


def _constants(found: Calibration) -> Grid:
    rows = tuple(
        (p.name, f"{p.value:.3g}", f"{value:.3g}", f"{100 * spread:.0f} %", _bound(p.low, p.high, value))
        for p, value, spread in zip(found.parameters, found.fit.values, found.fit.uncertainty, strict=True)
    )
    title = f"Constants of {found.cluster.name}, from {found.rows} runs"
    return Grid(("constant", "start", "fitted", "+-", ""), rows, left=(0, 4), title=title)


def _bound(low: float, high: float, value: float) -> str:
    return "at its bound" if value <= low * 1.001 or value >= high * 0.999 else ""


def _errors(found: Calibration) -> Grid:
    rows = tuple(
        (e.source, str(e.n), str(e.models), percent(e.before), percent(e.after), _left_out(e)) for e in found.sources
    )
    return Grid(("source", "runs", "models", "before", "after", "model left out"), rows, left=(0,),
                title="Mean absolute error of the step time")


def _left_out(errors: SourceErrors) -> str:
    return "-" if errors.left_out is None else percent(errors.left_out)


def _summary(found: Calibration) -> str:
    if found.left_out is None:
        return "All runs are of one model, so none could be left out: how this carries over to others is not known."
    ratio = found.left_out / found.after
    return (f"Over all runs {percent(found.after)}; {percent(found.left_out)} ({ratio:.2f} x) for each model by a fit "
            "that did not see it.")


def to_dict(calibrations: Sequence[Calibration], remarks: Sequence[str]) -> dict[str, Any]:
    """schema symconfig.calibration/1."""
    return {
        "schema": "symconfig.calibration/1",
        "clusters": [
            {
                "cluster": found.cluster.name,
                "rows": found.rows,
                "constants": {
                    p.name: {"before": p.value, "value": float(f"{value:.6g}"), "uncertainty": float(f"{spread:.3g}")}
                    for p, value, spread in zip(found.parameters, found.fit.values, found.fit.uncertainty, strict=True)
                },
                "mape": {"before": found.before, "after": found.after, "left_out": found.left_out},
                "sources": [
                    {"name": e.source, "n": e.n, "models": e.models, "before": e.before, "after": e.after,
                     "left_out": e.left_out}
                    for e in found.sources
                ],
            }
            for found in calibrations
        ],
        "remarks": list(remarks),
    }
