"""How far runs lie from predictions of which nothing was fitted to their source, for the intervals of predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from symconfig.measured.calibrate import Calibration
from symconfig.measured.fit import Array
from symconfig.measured.judge import Judged
from symconfig.measured.runs import Timed
from symconfig.measured.score import Source
from symconfig.solve.interval import KINDS, Quantity, Ratios, Spread, expected, kind

DIGITS = 4
ONE_DEVIATION = 0.683  # of a normal distribution's values lie nearer than one standard deviation
SEVERAL = 5  # sources of a kind of model, from which it has a reach of its own
COVERED = 0.9  # of the runs, by an interval around what is expected of their source


def ratios(scores: Sequence[Source], fitted: Sequence[tuple[Calibration, Sequence[Timed]]]) -> list[Ratios]:
    """Return measured over predicted: seconds by the fit that did not see the source.

    Bytes are as they were predicted: nothing is fitted to them.
    """
    unseen = _seconds(fitted)
    gathered: dict[tuple[Quantity, str, str, str], list[float]] = {}
    for source in scores:
        for item in source.rows:
            of = "sft" if item.row.task == "sft" else kind(item.case.model)
            like = (item.case.cluster.gpu.architecture, of, source.name)
            if item.time:
                seconds = unseen.get((source.name, item.row.id), item.time[0])
                gathered.setdefault(("time", *like), []).append(item.time[1] / seconds)
            if item.memory and _is_peak(item):
                gathered.setdefault(("memory", *like), []).append(item.memory[1] / item.memory[0])
    return [
        Ratios(*key, measured=tuple(sorted(round(value, DIGITS) for value in values)))
        for key, values in sorted(gathered.items())
    ]


def _seconds(fitted: Sequence[tuple[Calibration, Sequence[Timed]]]) -> Mapping[tuple[str, str], float]:
    """Return seconds by source and row, from the fit that did not see the source."""
    return {
        (source, item.row.id): float(np.exp(log_s))
        for calibration, runs in fitted
        for (source, item), log_s in zip(runs, calibration.fit.left_out_log_s[1], strict=True)
    }


def _is_peak(item: Judged) -> bool:
    """Tell whether the figure is of a whole run, not of activations alone."""
    measured = item.row.measured
    return any((measured.peak_allocated_gib, measured.peak_reserved_gib, measured.memory_gb))


def spread(seen: Sequence[Ratios]) -> Spread:
    """Measure the spread of one quantity's runs and sources.

    Also how far that reaches for nine in ten runs of each kind by what the other sources say.
    """
    groups = [np.log(each.measured) for each in seen]
    several = [runs for runs in groups if len(runs) > 2]
    off = np.concatenate([np.abs(runs - np.median(runs)) * np.sqrt(len(runs) / (len(runs) - 1)) for runs in several])
    # A sweep of hundreds is one way to run; it counts as the root of its rows.
    weights = np.concatenate([np.full(len(runs), len(runs) ** -0.5) for runs in several])
    run = _quantile(off, weights, ONE_DEVIATION)
    middles = np.abs([np.median(runs) for runs in groups])
    source = _quantile(middles, np.ones(len(middles)), ONE_DEVIATION)
    away = distances(seen, run, source)
    pooled = [each for by_source in away.values() for each in by_source.values()]
    own = {name: [*by_source.values()] for name, by_source in away.items() if len(by_source) >= SEVERAL}
    reach = {name: _reach(own.get(name, pooled)) for name in KINDS}
    return Spread(run=run, source=source, reach=reach)


def distances(seen: Sequence[Ratios], run: float, source: float) -> dict[str, dict[str, Array]]:
    """Return how many deviations the runs lie from what the other sources let expect, by kind and source."""
    away: dict[str, dict[str, Array]] = {}
    for each in seen:
        others = [other for other in seen if other.source != each.source]
        mean, deviation = expected(others, run, source, each.gpu, each.kind)
        mine = np.abs(np.log(each.measured) - mean) / deviation
        of_kind = away.setdefault(each.kind, {})
        of_kind[each.source] = np.append(of_kind.get(each.source, []), mine)
    return away


def covered(seen: Sequence[Ratios], run: float, source: float) -> dict[str, float]:
    """Return the share of runs inside their interval, by kind, each interval from the other sources alone."""
    result = {}
    for name, away in distances(seen, run, source).items():
        inside = [
            mine <= _reach([other for theirs, other in away.items() if theirs != each])
            for each, mine in away.items()
            if len(away) > 1
        ]
        if inside:
            result[name] = round(float(np.mean(np.concatenate(inside))), DIGITS)
    return result


def _reach(away: Sequence[Array]) -> float:
    return float(np.quantile(np.concatenate(away), COVERED, method="higher"))


def _quantile(values: Array, weights: Array, share: float) -> float:
    order = np.argsort(values)
    return float(np.interp(share, np.cumsum(weights[order]) / weights.sum(), values[order]))
