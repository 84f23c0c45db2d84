"""What pictures of several commands show: points over two axes, bars of parts, and who holds which part.

Pages draw them (assets/views/pictures.js).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from symconfig.measured.score import Source
    from symconfig.runs.sweep.run import Swept
    from symconfig.runs.sweep.size import OfCluster, Size, Tried
    from symconfig.runs.whatif.change import Case
    from symconfig.runs.whatif.whatif import WhatIf

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Dot:
    """says: what is shown of it where a person points at it, a line each."""

    x: float
    y: float
    says: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """Dots of one colour. lines: the places of the dots that each line joins."""

    name: str
    dots: tuple[Dot, ...]
    lines: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Scatter:
    """title, x, y: what is drawn over which quantities. diagonal: a line where both are equal; upright: one at a value
    of x, with its name. Both axes are logarithmic."""

    kind: ClassVar = "scatter"
    title: str
    x: str
    y: str
    series: tuple[Series, ...]
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
    series = []
    for source in scores:
        timed = [(item.row.id, *item.time) for item in source.rows if item.time]
        if timed:
            error = sum(abs(predicted / measured - 1) for _, predicted, measured in timed) / len(timed)
            dots = tuple(Dot(measured, predicted, (row,)) for row, predicted, measured in timed)
            series.append(Series(f"{source.name}: {len(timed)} rows, {100 * error:.1f} %", dots))
    title = "Predicted against measured step time; mean absolute error by source"
    return Scatter(
        title,
        "measured seconds of a step",
        "predicted seconds of a step",
        tuple(series),
        diagonal=True,
    )


def of_size(size: Size) -> Scatter:
    """Draw cost against days for numbers of GPUs with a plan, a series for each cluster; those that no other beats are
    joined by a line."""
    question = size.question
    planned = [(one, one.planned) for one in size.clusters if one.planned]
    priced = all(tried.cost is not None for _, shown in planned for tried in shown)
    return Scatter(
        f"{question.model.name}, {question.tokens:,} tokens: numbers of GPUs",
        "days",
        "cost" if priced else "GPU-hours",
        tuple(_numbers(one, shown, priced) for one, shown in planned),
        upright=("deadline", question.deadline_s / DAY_S),
    )


def _numbers(one: OfCluster, shown: Sequence[Tried], priced: bool) -> Series:
    """Draw one cluster: its numbers of GPUs, and a line through those that no other number beats."""
    from symconfig.runs.sweep.size import frontier

    def cost(tried: Tried) -> float:
        return tried.cost if priced and tried.cost is not None else tried.gpu_hours

    best = frontier(shown, cost)
    dots = (Dot(tried.run_s / DAY_S, cost(tried), (f"{tried.gpus:,} GPUs",)) for tried in shown)
    return Series(one.name, tuple(dots), (tuple(shown.index(tried) for tried in best),))


def of_whatif(what_if: WhatIf) -> Scatter:
    """Draw the step of the best plan over the ranges of the first name."""
    one = what_if.lines[0]
    dots: dict[str, list[Dot]] = {}
    for span in one.spans:
        if span.answer.step_s is not None and span.high_s is not None:
            ends = Dot(span.low, span.answer.step_s), Dot(span.high, span.high_s)
            dots.setdefault(span.answer.name, []).extend(ends)
    pairs = {name: tuple((place, place + 1) for place in range(0, len(mine), 2)) for name, mine in dots.items()}
    series = tuple(Series(name, tuple(mine), pairs[name]) for name, mine in dots.items())
    axis = one.vary.name if one.vary.whole else f"{one.vary.name}, times what it is"
    return Scatter("The best plan", axis, "seconds of a step", series)


def of_sweep(swept: Swept) -> Scatter:
    """Draw tokens a second against GPUs for all combinations with a plan, a series for each model and cluster."""
    series: dict[str, list[Dot]] = {}
    for record in swept.records:
        gpus, speed = record.get("gpus"), record.get("tokens_per_s")
        if isinstance(gpus, int | float) and isinstance(speed, int | float) and speed > 0:
            degrees = ", ".join(f"{name} {record[name]}" for name in ("tp", "pp", "cp", "ep", "dp") if record.get(name))
            says = (f"batch {record['global_batch_size']}, sequence {record['seq_length']}", degrees)
            series.setdefault(f"{record['model']} on {record['cluster']}", []).append(Dot(gpus, speed, says))
    shown = tuple(Series(name, tuple(dots)) for name, dots in series.items())
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
