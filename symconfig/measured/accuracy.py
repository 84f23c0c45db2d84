"""What symconfig records of its own errors: the scores for the README, the ratios for the intervals of predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.measurements import Measurements
from symconfig.graph.count import parameters
from symconfig.measured.calibrate import Calibration, SourceErrors
from symconfig.measured.judge import Judged
from symconfig.measured.priors import priors
from symconfig.measured.runs import Timed
from symconfig.measured.score import Source
from symconfig.solve.interval import kind
from symconfig.units import significant

DIGITS = 4


def record(
    scores: Sequence[Source],
    fitted: Sequence[tuple[Calibration, Sequence[Timed]]],
    sources: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """schema symconfig.accuracy/1. fitted: each GPU type's fit with its runs; sources: the scores as plain data, each
    with what `about` says of it.
    """
    return {
        "schema": "symconfig.accuracy/1",
        "sources": list(sources),
        "left_out": [
            {
                "cluster": found.cluster.name,
                "n": found.rows,
                "models": len({item.row.model.name for _, item in runs}),
                "fitted": _tidy(found.after),
                "left_out": None if found.left_out is None else _tidy(found.left_out),
            }
            for found, runs in fitted
        ],
        "unseen": _unseen_sources(fitted),
        "constants": [_constants(found) for found, _ in fitted],
        "ratios": _ratios(scores, _unseen(fitted)),
    }


def _unseen_sources(fitted: Sequence[tuple[Calibration, Sequence[Timed]]]) -> list[dict[str, Any]]:
    """Each source's mean error over all GPU types, fitted and by fits that did not see it."""
    parts: dict[str, list[SourceErrors]] = {}
    for found, _ in fitted:
        for each in found.sources:
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


def _constants(found: Calibration) -> dict[str, Any]:
    """What was believed of each constant of a GPU type, what the runs made of it, and which runs took it far."""
    basis = {name: prior.basis for name, prior in priors(found.cluster).items()}
    left = {item.constant: item for item in found.left}
    return {
        "cluster": found.cluster.name,
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
            for p, value, spread in zip(found.parameters, found.fit.values, found.fit.uncertainty, strict=True)
        },
    }


def about(file: Measurements, source: Source) -> dict[str, Any]:
    """What a stranger needs to know of a source: where it was published, and what was run with what on which GPUs."""
    rows = [item.row for item in source.rows]
    sizes = {item.row.model.name: parameters(item.case.model).total for item in source.rows}
    every = [parameters(item.case.model).total for item in source.rows]
    gpus = [row.cluster.gpus for row in rows if row.cluster.gpus]
    return {
        "title": file.source.get("title", source.name),
        "paper": file.source.get("paper"),
        "repository": file.source.get("repository"),
        "tasks": _distinct(row.task for row in rows),
        "models": sorted(sizes, key=lambda name: sizes[name]),
        "parameters": [min(every), max(every)] if every else None,
        "software": _distinct(row.software.name for row in rows if row.software),
        "gpu_types": _distinct(row.cluster.gpu for row in rows if row.cluster.gpu),
        "gpus": [min(gpus), max(gpus)] if gpus else None,
    }


def _distinct(names: Iterable[str]) -> list[str]:
    """Each once, the most frequent first."""
    return [name for name, _ in Counter(names).most_common()]


def _unseen(fitted: Sequence[tuple[Calibration, Sequence[Timed]]]) -> dict[tuple[str, str], float]:
    """Seconds by (source, row) from the fit that did not see the row's source."""
    result = {}
    for found, runs in fitted:
        for (source, item), log_s in zip(runs, found.fit.left_out_log_s[1], strict=True):
            result[source, item.row.id] = float(np.exp(log_s))
    return result


def _ratios(scores: Sequence[Source], unseen: Mapping[tuple[str, str], float]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str, str, str, str], list[float]] = {}
    for source in scores:
        for item in source.rows:
            if item.time:
                seconds = unseen.get((source.name, item.row.id), item.time[0])
                found.setdefault(("time", *_like(item), source.name), []).append(item.time[1] / seconds)
            if item.memory and _is_peak(item):
                found.setdefault(("memory", *_like(item), source.name), []).append(item.memory[1] / item.memory[0])
    return [
        {
            "quantity": key[0],
            "framework": key[1],
            "gpu": key[2],
            "kind": key[3],
            "source": key[4],
            "measured": sorted(_tidy(value) for value in values),
        }
        for key, values in sorted(found.items())
    ]


def _is_peak(item: Judged) -> bool:
    """Whether the figure is of a whole run, not of activations alone."""
    measured = item.row.measured
    return any((measured.peak_allocated_gib, measured.peak_reserved_gib, measured.memory_gb))


def _like(item: Judged) -> tuple[str, str, str]:
    """What makes runs comparable: framework, GPU architecture, kind of model."""
    cluster: ClusterDescriptor = item.case.cluster
    return item.case.configuration.framework.name, cluster.gpu.architecture, kind(item.case.model)


def _tidy(value: float) -> float:
    return round(value, DIGITS)
