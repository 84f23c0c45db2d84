"""Pictures that pages of several commands draw: points over two axes, bars of parts, and who holds which part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from symconfig.measured.score import Source
    from symconfig.runs.adaptability import Case
    from symconfig.runs.sweep.run import Swept
    from symconfig.runs.sweep.size import Size

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Dot:
    """says: what is shown of it where a person points at it, a line each."""

    x: float
    y: float
    says: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scatter:
    """title, x, y: what is drawn over which quantities. diagonal: a line where both are equal; upright: one at a value
    of x, with its name. Both axes are logarithmic."""

    kind: ClassVar = "scatter"
    title: str
    x: str
    y: str
    series: tuple[tuple[str, tuple[Dot, ...]], ...]
    diagonal: bool = False
    upright: tuple[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each name, whose parts are in `series`: stacked, or side by side. None: `none` is said of it. upright:
    a line at a value, with its name."""

    kind: ClassVar = "bars"
    title: str
    unit: str
    names: tuple[str, ...]
    series: tuple[tuple[str, tuple[float | None, ...]], ...]
    stacked: bool = True
    none: str = ""
    upright: tuple[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """cut: of each axis of the mesh, whether ranks along it hold different parts of the tensor. says: how it is cut."""

    name: str
    says: str
    cut: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """The GPUs that hold the same part of a tensor. axes: of the mesh, each its size and the distance of neighbours.
    first: the place of the tensor that is drawn before a person chooses one."""

    kind: ClassVar = "held"
    title: str
    gpus: int
    per_node: int
    axes: tuple[tuple[int, int], ...]
    tensors: tuple[Tensor, ...]
    first: int = 0


Picture = Scatter | Bars | Held


def of_scores(scores: Sequence[Source]) -> Scatter:
    """Draw predicted against measured seconds of a step, a series for each source."""
    series = tuple(
        (
            source.name,
            tuple(Dot(item.time[1], item.time[0], (item.row.id,)) for item in source.rows if item.time),
        )
        for source in scores
    )
    shown = tuple((name, dots) for name, dots in series if dots)
    return Scatter(
        "Predicted against measured", "measured seconds of a step", "predicted seconds of a step", shown, diagonal=True
    )


def of_size(size: Size) -> Scatter:
    """Draw cost against days for all numbers of GPUs with a plan, a series for each cluster."""
    planned = [(one.name, one.planned) for one in size.clusters if one.planned]
    priced = all(tried.cost is not None for _, each in planned for tried in each)
    series = tuple(
        (
            name,
            tuple(
                Dot(
                    tried.run_s / DAY_S,
                    tried.cost if priced and tried.cost is not None else tried.gpu_hours,
                    (f"{tried.gpus:,} GPUs",),
                )
                for tried in each
            ),
        )
        for name, each in planned
    )
    end = ("deadline", size.question.deadline_s / DAY_S)
    return Scatter("Cost against time", "days", "cost" if priced else "GPU-hours", series, upright=end)


def of_sweep(swept: Swept) -> Scatter:
    """Draw tokens a second against GPUs for all combinations with a plan, a series for each model and cluster."""
    series: dict[str, list[Dot]] = {}
    for record in swept.records:
        gpus, speed = record.get("gpus"), record.get("tokens_per_s")
        if isinstance(gpus, int | float) and isinstance(speed, int | float) and speed > 0:
            degrees = ", ".join(f"{name} {record[name]}" for name in ("tp", "pp", "cp", "ep", "dp") if record.get(name))
            says = (f"batch {record['global_batch_size']}, sequence {record['seq_length']}", degrees)
            series.setdefault(f"{record['model']} on {record['cluster']}", []).append(Dot(gpus, speed, says))
    shown = tuple((name, tuple(dots)) for name, dots in series.items())
    return Scatter("Tokens a second", "GPUs", "tokens/s", shown)


def of_changes(cases: Sequence[Case]) -> Bars:
    """Draw tokens a second after each change: of the old strategy, and of one that is found anew."""
    before = cases[0].before.tokens_per_s
    return Bars(
        "A strategy that is kept, against a new one",
        "tokens/s",
        tuple(case.name for case in cases),
        (
            ("kept", tuple(case.kept.tokens_per_s for case in cases)),
            ("replanned", tuple(case.replanned.tokens_per_s for case in cases)),
        ),
        stacked=False,
        none="does not run",
        upright=None if before is None else ("before", before),
    )
