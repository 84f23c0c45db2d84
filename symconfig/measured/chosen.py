"""The plan of a measured sweep that the planner's choice would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from symconfig.descriptor.job import Limits
from symconfig.measured.judge import Judged
from symconfig.solve.budget import fitting
from symconfig.solve.choice.choose import Drawn, pick
from symconfig.solve.choice.draws import Draws, step_seconds
from symconfig.solve.choice.simplicity import simplicity
from symconfig.solve.predict import as_found
from symconfig.solve.prospect import Prospect


def chosen(judged: Sequence[Judged]) -> Judged:
    """Return the plainest of the runs with the least expected loss, of those whose risk of running out a job takes by
    default; where there is none, the one that is likeliest to fit."""
    likely = [_fits(item) for item in judged]
    fit = [item for item, chance in zip(judged, likely, strict=True) if chance >= 1 - Limits().memory_risk]
    if not fit:
        return judged[likely.index(max(likely))]
    drawn = [_drawn(item) for item in fit]
    best = pick(drawn)
    return fit[next(place for place, each in enumerate(drawn) if each is best)]


def _point(item: Judged) -> Prospect:
    what, step = item.case, item.prediction.predicted.step_s
    return replace(as_found(what.model, what.cluster, what.configuration), step_s=step, score=step)


def _fits(item: Judged) -> float:
    point = _point(item)
    return fitting(point.request, point.machine, item.prediction.predicted.peak_bytes, item.case.cluster)


def _drawn(item: Judged) -> Drawn:
    point, cluster = _point(item), item.case.cluster
    return Drawn(point, simplicity(point, cluster.joined_gpus), step_seconds(point, cluster, Draws.of(cluster)))
