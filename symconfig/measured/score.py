"""Predictions against measured runs, scored by source, never pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.measurements import Measurements, load_measurements
from symconfig.errors import InputError
from symconfig.measured.judge import Judged, judge
from symconfig.measured.metrics import Error, Growth, Oom, Sweep, error, growths, oom, sweep
from symconfig.measured.row_cluster import known

TARGETS = "the file says `validate: false`: targets, not runs"


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of some rows of one file. layer: rows that time one layer's passes."""

    rows: tuple[Judged, ...]
    time: Error | None
    layer: Error | None
    memory: Error | None
    oom: Oom | None


@dataclass(frozen=True, slots=True)
class Source(Scored):
    """Scores of one file: of all its rows, and of those apart that rest on an assumption and that do not.

    skipped: ids of rows that cannot be predicted, each with the reason.
    """

    name: str
    skipped: tuple[tuple[str, str], ...]
    sweeps: tuple[Sweep, ...]
    growths: tuple[Growth, ...]
    stated: Scored
    assumed: Scored


Scores = tuple[Source, ...]


def score(paths: Sequence[Path]) -> Scores:
    """Return the scores of each measurement file; rows that cannot be predicted are listed with the reason.

    Raises InputError for a file that cannot be read.
    """
    return tuple(source(path.stem, load_measurements(path)) for path in paths)


def source(name: str, file: Measurements) -> Source:
    """Return the scores of one file: of all rows, of rows without and with assumptions, and of its sweeps.

    name: also selects the file's assumptions. If the file is marked as not validated, every row is skipped.
    """
    judged, skipped = predicted(name, file) if file.validated else ([], [(row.id, TARGETS) for row in file.rows])
    whole = scored(judged)
    names = dict.fromkeys(item.row.sweep for item in judged if item.row.sweep)
    sweeps = (sweep(each, [item for item in judged if item.row.sweep == each]) for each in names)
    return Source(
        **{field.name: getattr(whole, field.name) for field in fields(whole)},
        name=name,
        skipped=tuple(skipped),
        sweeps=tuple(scored_sweep for scored_sweep in sweeps if scored_sweep is not None),
        growths=growths(judged),
        stated=scored([item for item in judged if not item.assumed]),
        assumed=scored([item for item in judged if item.assumed]),
    )


def predicted(
    name: str, file: Measurements, cluster: ClusterDescriptor | None = None
) -> tuple[list[Judged], list[tuple[str, str]]]:
    """Return the predicted rows and, for those that cannot be predicted, (id, first line of the reason).

    cluster: used for rows that name it, if the zoo has no cluster of this name.
    """
    named = () if cluster is None or known(cluster.name) else (cluster.name, *cluster.aliases)
    judged, skipped = list[Judged](), list[tuple[str, str]]()
    for row in file.rows:
        try:
            judged.append(judge(name, row, cluster=cluster if row.cluster.gpu in named else None))
        except InputError as problem:
            skipped.append((row.id, str(problem).splitlines()[0]))
    return judged, skipped


def scored(judged: Sequence[Judged]) -> Scored:
    """Return the rows with their errors in step time, layer time and memory, and out-of-memory scores.

    A score is None if no row has its figure.
    """
    return Scored(
        tuple(judged),
        error([(item.row.id, item.time) for item in judged if item.time]),
        error([(item.row.id, pair) for item in judged for pair in item.layers]),
        error([(item.row.id, item.memory) for item in judged if item.memory]),
        oom(judged),
    )
