"""The combinations of a sweep: in a written order, each with an id that says what is asked and nothing of where."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.plans.digests import digest
from symconfig.runs.sweep.job import Fields, SweepJob, put, with_defaults

ID_LETTERS = 16  # of SHA-256 in hexadecimal: among a million, two are alike with a probability of 3e-8
LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Point:
    """One plan that is asked for. job: the fields of a JOB.yaml; model, cluster: their descriptors."""

    id: str
    job: Mapping[str, Any]
    model: ModelDescriptor
    cluster: ClusterDescriptor


@dataclass(frozen=True, slots=True)
class Points:
    """combinations: of all values; excluded: by a rule. idle: numbers of rules, from one, that match none. prices: of a
    GPU-hour, by cluster."""

    points: tuple[Point, ...]
    prices: Mapping[str, float]
    combinations: int
    excluded: int
    idle: tuple[int, ...]


@dataclass(slots=True)
class Ids:
    """A maker of ids, with the digest of each descriptor taken once.

    It digests whole descriptors, so that an edited one has others.
    """

    # By identity, with the descriptor itself: a number is given again to another object once the first one is gone.
    _digests: dict[int, tuple[ModelDescriptor | ClusterDescriptor, str]] = field(default_factory=dict)

    def of(self, job: Mapping[str, Any], model: ModelDescriptor, cluster: ClusterDescriptor) -> str:
        """Return the id; job: as of `with_defaults`, with all of its training.

        No plan looks at that, and every plan.json has it.
        """
        inputs = {"job": dict(job), "model": self._digest(model), "cluster": self._digest(cluster)}
        return digest(inputs)[:ID_LETTERS]

    def _digest(self, described: ModelDescriptor | ClusterDescriptor) -> str:
        if id(described) not in self._digests:
            self._digests[id(described)] = described, digest(described.model_dump(mode="json", by_alias=True))
        return self._digests[id(described)][1]


def combinations(sweep: SweepJob) -> int:
    """Count the combinations before any is left out."""
    return prod(len(axis.values) for axis in sweep.axes)


def points(sweep: SweepJob, limit: int = LIMIT) -> Points:
    """Return every combination once, the last axis fastest.

    Raises InputError for more than `limit`, and for none at all.
    """
    total = combinations(sweep)
    if total > limit:
        sizes = " x ".join(f"{len(axis.values):,} {axis.name}" for axis in sweep.axes)
        raise InputError(
            "the sweep has too many combinations",
            field="sweep",
            got=f"{sizes} = {total:,}",
            need=f"at most {limit:,}",
            hint=f"shorter lists, or --limit {total}",
        )
    ids, kept, idle = Ids(), dict[str, Point](), set(range(len(sweep.exclude)))
    excluded = 0
    for job in _jobs(sweep):
        known = with_defaults(job)
        if matching := [number for number, rule in enumerate(sweep.exclude) if rule.matches(known)]:
            idle -= set(matching)
            excluded += 1
            continue
        model, cluster = sweep.models[job["model"]], sweep.clusters[job["cluster"]]
        point = Point(ids.of(known, model, cluster), job, model, cluster)
        kept.setdefault(point.id, point)
    if not kept:
        raise InputError("the rules leave nothing to plan", field="exclude", got=f"all of {total:,} excluded")
    return Points(tuple(kept.values()), sweep.prices, total, excluded, tuple(sorted(number + 1 for number in idle)))


def _jobs(sweep: SweepJob) -> Iterator[Fields]:
    for values in product(*(axis.values for axis in sweep.axes)):
        job = json.loads(json.dumps(sweep.base))
        for axis, value in zip(sweep.axes, values, strict=True):
            put(job, axis.name, value)
        yield job
