"""Where the error of one row may come from: what it states, what was assumed, and its prediction part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from symconfig.errors import InputError, nearest
from symconfig.measured.judge import ACTIVE, Judged, compared_stage, judge
from symconfig.measured.read import Read
from symconfig.solve.interval import Interval, interval
from symconfig.solve.work import Work, work

# Standard deviation of the log time of a step, in addition, where no run of the software was measured: the medians of
# ten sources are off by 0.11 (root mean square), and by 0.21 where they are predicted as if nobody knew their software.
UNMEASURED_SOFTWARE = 0.18


@dataclass(frozen=True, slots=True)
class Part:
    """A term of a sum: seconds or bytes, and its share of the sum.

    needed: what it would have to be multiplied with for the sum to be what was measured, all else as it is. None: no
    positive factor does that, or nothing was measured.
    """

    name: str
    value: float
    share: float
    needed: float | None


@dataclass(frozen=True, slots=True)
class Stage:
    """Bytes of pipeline stages first to last, which hold the same, by part."""

    first: int
    last: int
    parts: tuple[tuple[str, float], ...]
    peak: float


@dataclass(frozen=True, slots=True)
class Breakdown:
    """One row, taken apart. memory: parts of what was compared with the measurement, whose meaning is `figure`.

    work: what the blocks' seconds are made of. interval: of the seconds of a step.
    """

    source: str
    item: Judged
    stated: tuple[tuple[str, Mapping[str, Any]], ...]
    time: tuple[Part, ...]
    work: tuple[Work, ...]
    memory: tuple[Part, ...]
    figure: str
    stages: tuple[Stage, ...]
    interval: Interval


def breakdown(files: Read, row_id: str) -> Breakdown:
    """Break down one row's prediction; raise InputError where no row has this id, or it cannot be predicted."""
    rows = {row.id: (name, row) for name, content in files for row in content.rows}
    if row_id not in rows:
        hint = nearest(row_id, rows) or next((known for known in rows if row_id and row_id in known), None)
        hint = hint or "symconfig validate --json, which lists every id"
        raise InputError("no row has this id", field="--explain", got=row_id, hint=hint)
    name, row = rows[row_id]
    try:
        item = judge(name, row)
    except InputError as error:
        raise InputError(
            [replace(problem, file=problem.file or f"{row_id} of {name}") for problem in error.problems]
        ) from None
    figure, held = _compared(item)
    return Breakdown(
        source=name,
        item=item,
        stated=_stated(item),
        time=parts(item.time_parts, item.time[1] if item.time else None),
        work=work(item.case.model, item.case.cluster, item.case.configuration),
        memory=parts(held, item.memory[1] if item.memory else None),
        figure=figure,
        stages=_stages(item),
        interval=interval(
            "time", item.case.cluster, item.case.model, 0.0 if item.case.unmeasured is None else UNMEASURED_SOFTWARE
        ),
    )


def parts(terms: Mapping[str, float], measured: float | None) -> tuple[Part, ...]:
    """Return the terms of a sum, with the factor for each that would turn the sum into `measured`."""
    total = sum(terms.values())
    result = []
    for name, value in terms.items():
        target = None if measured is None else measured - (total - value)
        needed = target / value if target is not None and target > 0 and value > 0 else None
        result.append(Part(name, value, value / total if total else 0.0, needed))
    return tuple(result)


def _compared(item: Judged) -> tuple[str, dict[str, float]]:
    """Name the measured memory, and return the parts of its counterpart.

    Without a measurement those of the whole GPU.
    """
    measured, prediction = item.row.measured, item.prediction
    peaks = prediction.stage_bytes
    stage = compared_stage(item.row, prediction)
    held = {name: values[stage] for name, values in prediction.stage_parts.items()}
    which = {"last": "last", 0: "first", "max": "fullest", None: "fullest"}[measured.memory_rank]
    which = f"the {which} stage" if measured.stage is None else f"stage {measured.stage}"
    where = "" if len(peaks) == 1 else f" of {which}"
    if item.memory is None or measured.device_used_gib or measured.device_used_gb:
        return f"all that the device holds{where}", dict(prediction.predicted.memory)
    if measured.peak_allocated_gib is not None:
        return f"allocated peak{where}", held
    if measured.peak_reserved_gib is not None:
        return f"reserved peak{where}", held | {"allocator": item.memory[0] - sum(held.values())}
    if measured.memory_gb is not None:
        return f"memory{where}, taken for the allocated peak", held
    return f"peak of activations{where}", {name: held[name] for name in ACTIVE}


def _stated(item: Judged) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return the statements of the row, section by section."""
    document = item.row.model_dump(mode="json", by_alias=True, exclude_none=True)
    sections = ("model", "cluster", "software", "parallel", "batch", "options", "measured", "derived")
    return tuple((name, document[name]) for name in sections if document.get(name))


def _stages(item: Judged) -> tuple[Stage, ...]:
    """Return the stages, with neighbours that hold the same bytes as one."""
    held, peaks = item.prediction.stage_parts, item.prediction.stage_bytes
    groups: list[Stage] = []
    for number, peak in enumerate(peaks):
        content = tuple((name, values[number]) for name, values in held.items())
        if groups and groups[-1].parts == content:
            groups[-1] = Stage(groups[-1].first, number, content, peak)
        else:
            groups.append(Stage(number, number, content, peak))
    return tuple(groups)
