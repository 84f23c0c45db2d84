"""What symconfig records of its own errors: the scores for the pages, the ratios for the intervals of predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from symconfig.measured.calibrate import Calibration, SourceErrors, priors
from symconfig.measured.runs import Timed
from symconfig.measured.score import Source
from symconfig.units import significant
from tools.accuracy_unseen import DIGITS, covered, ratios, spread


def record(
    scores: Sequence[Source],
    fitted: Sequence[tuple[Calibration, Sequence[Timed]]],
    sources: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the record in the schema symconfig.accuracy/2. fitted: each GPU type's fit with its runs; sources: the
    scores as plain data, each with where it was published.
    """
    unseen = ratios(scores, fitted)
    by_quantity = {name: [each for each in unseen if each.quantity == name] for name in ("time", "memory")}
    spreads = {name: spread(mine) for name, mine in by_quantity.items()}
    of_time = spreads["time"]
    return {
        "schema": "symconfig.accuracy/2",
        "sources": list(sources),
        "left_out": [
            {
                "cluster": calibration.cluster.name,
                "n": calibration.rows,
                "models": len({item.row.model.name for _, item in runs}),
                "fitted": _tidy(calibration.after),
                "left_out": None if calibration.left_out is None else _tidy(calibration.left_out),
            }
            for calibration, runs in fitted
        ],
        "unseen": _unseen_sources(fitted),
        "constants": [_constants(calibration) for calibration, _ in fitted],
        "covered": covered(by_quantity["time"], of_time.run, of_time.source),
        "spread": {name: asdict(each) for name, each in spreads.items()},
        "ratios": [asdict(each) for each in unseen],
    }


def _unseen_sources(fitted: Sequence[tuple[Calibration, Sequence[Timed]]]) -> list[dict[str, Any]]:
    """Return each source's mean error over all GPU types, fitted and by fits that did not see it."""
    parts: dict[str, list[SourceErrors]] = {}
    for calibration, _ in fitted:
        for each in calibration.sources:
            parts.setdefault(each.source, []).append(each)
    rows = {name: sum(each.n for each in mine) for name, mine in parts.items()}
    return [
        {
            "name": name,
            "n": rows[name],
            "fitted": _tidy(sum(each.n * each.after for each in mine) / rows[name]),
            "unseen": _tidy(sum(each.n * each.unseen for each in mine) / rows[name]),
        }
        for name, mine in sorted(parts.items())
    ]


def _constants(calibration: Calibration) -> dict[str, Any]:
    """Record each constant of a GPU type before and after the fit, and the runs that moved it far."""
    basis = {name: prior.source for name, prior in priors(calibration.cluster).items()}
    left = {item.constant: item for item in calibration.left}
    return {
        "cluster": calibration.cluster.name,
        "constants": {
            p.name: {
                "prior": significant(p.value, 3),
                "prior_uncertainty": significant(p.uncertainty, 2),
                "basis": basis[p.name],
                "value": significant(value, 3),
                "uncertainty": significant(spread, 2),
                "deviations": round(left[p.name].deviations, 1) if p.name in left else None,
                "rows": {name: round(share, 2) for name, share in left[p.name].rows} if p.name in left else {},
            }
            for p, value, spread in zip(
                calibration.parameters, calibration.fit.values, calibration.fit.uncertainty, strict=True
            )
        },
    }


def _tidy(value: float) -> float:
    return round(value, DIGITS)
