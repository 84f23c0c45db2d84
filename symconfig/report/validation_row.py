"""`symconfig validate --explain ID`: one measured row beside its prediction, part by part. Fits 100 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from symconfig.format import gib, milliseconds, percent, picked, seconds, signed
from symconfig.report.grid import Block, Grid, titled
from symconfig.solve.candidate import tidy

if TYPE_CHECKING:
    from symconfig.measured.breakdown import Breakdown, Part

_STAGES = 10  # a longer pipeline is shown by its ends and its fullest stage
_FROM = {
    "step_s": "",
    "tokens_per_s_per_gpu": "from its tokens/s per GPU",
    "tokens_per_s": "from its tokens/s",
    "samples_per_s_per_gpu": "from its samples/s per GPU",
    "tflops_per_gpu": "from its model TFLOP/s, as it counts",
    "mfu": "from its MFU, as it counts",
    "hardware_tflops_per_gpu": "from its hardware TFLOP/s, as it counts",
    "stage_forward_ms": "one GPU's own work, without a network",
    "hfu": "from its hardware utilisation, as it counts",
}


def blocks(breakdown: Breakdown) -> list[Block]:
    """Show the row for a person."""
    row = breakdown.item.row
    item = breakdown.item
    gpu = item.case.cluster.gpu
    used, limit = item.prediction.predicted.device_bytes, gpu.memory_bytes.value
    outcome = "it ran out of memory" if item.row.measured.oom else "it ran"
    word = "does not fit" if item.oom else "fits"
    step = breakdown.item.prediction.predicted.step_s
    heads = ("work of the blocks", "forward s", "backward s", "hidden s", "of the step")
    rows = tuple(
        (each.name, *map(seconds, (each.forward_s, each.backward_s, each.hidden_s)), percent(each.total_s / step))
        for each in breakdown.work
        if each.total_s + each.hidden_s > 1e-3 * step
    )
    title = "The same by kind of work: mean over the stages, without bubble and what runs again"
    return [
        f"{row.id} of {breakdown.source}: {row.task}" + (f". Note: {row.note}" if row.note else ""),
        Grid.pairs(((name, _words(values)) for name, values in breakdown.stated), "Stated by the row"),
        _assumed(breakdown),
        *([f"{item.case.unmeasured[0].upper()}{item.case.unmeasured[1:]}."] if item.case.unmeasured else []),
        _time(breakdown),
        f"90 % interval of the step: {_interval(breakdown)} s ({breakdown.interval.basis}).",
        Grid(heads, rows, left=(0,), title=title),
        *([_layers(breakdown)] if breakdown.item.layers else []),
        _memory(breakdown),
        _stages(breakdown),
        f"Predicted: {gib(used)} of {gib(limit)} GiB of a {gpu.product}: it {word}. Measured: {outcome}.",
    ]


def _interval(breakdown: Breakdown) -> str:
    step_s = breakdown.item.prediction.predicted.step_s
    return " to ".join(seconds(step_s * factor) for factor in (breakdown.interval.low, breakdown.interval.high))


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"({_words(value)})"
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return "yes" if value is True else "no" if value is False else str(value)


def _assumed(breakdown: Breakdown) -> str:
    case = breakdown.item.case
    stated, taken = ([f"{name}: {value}" for name, value in pairs] for pairs in (case.documented, case.taken))
    lines = list(filter(None, (titled("Stated for the whole source by its text, recipes or code", stated),)))
    assumed = titled("Assumed for the whole source, since the row does not state it", taken)
    lines.append(assumed or "Assumed: nothing that changes the prediction")
    if case.taken or case.documented:
        lines.append(f"  because: {' '.join(case.reason.split())}")
    if case.ignored:
        lines.append(f"  not predicted with: {'; '.join(case.ignored)}")
    return "\n".join(lines)


def _time(breakdown: Breakdown) -> Grid:
    time = breakdown.item.time
    total = sum(part.value for part in breakdown.time)
    rows = [
        (part.name, seconds(part.value), percent(part.share), _needed(part)) for part in breakdown.time if part.value
    ]
    rows.append(("predicted", seconds(total), percent(1.0), ""))
    if time:
        source = _FROM.get(breakdown.item.time_from or "", "")
        rows.append(("measured", seconds(time[1]), percent(time[1] / time[0]), source))
        rows.append(("error", "", signed(time[0] / time[1] - 1), ""))
    return _sum("seconds of a step", "s", rows, bool(time))


def _needed(part: Part) -> str:
    return "" if part.needed is None else f"{part.needed:.2f} x"


def _layers(breakdown: Breakdown) -> Grid:
    m = breakdown.item.row.measured
    names = [name for name, ms in (("forward", m.layer_forward_ms), ("backward", m.layer_backward_ms)) if ms]
    rows = tuple(
        (name, milliseconds(predicted), milliseconds(measured), signed(predicted / measured - 1))
        for name, (predicted, measured) in zip(names, breakdown.item.layers, strict=True)
    )
    return Grid(("one layer", "predicted ms", "measured ms", "error"), rows)


def _memory(breakdown: Breakdown) -> Grid:
    memory = breakdown.item.memory
    total = sum(part.value for part in breakdown.memory)
    rows = [(part.name, gib(part.value), percent(part.share), _needed(part)) for part in breakdown.memory if part.value]
    rows.append(("predicted", gib(total), percent(1.0), ""))
    if memory:
        rows.append(("measured", gib(memory[1]), percent(memory[1] / memory[0]), ""))
        rows.append(("error", "", signed(memory[0] / memory[1] - 1), ""))
    return _sum("memory", "GiB", rows, bool(memory), f"Memory: {breakdown.figure}")


def _sum(what: str, unit: str, rows: Sequence[tuple[str, ...]], measured: bool, title: str = "") -> Grid:
    """Tabulate terms and their sum; what each would have to be, where something was measured."""
    headers = (what, unit, "share", "alone it would meet the measurement at")[: 4 if measured else 3]
    return Grid(headers, tuple(row[: len(headers)] for row in rows), left=(0, 3), title=title)


def _stages(breakdown: Breakdown) -> Grid:
    stages = breakdown.stages
    names = [name for name, _ in stages[0].parts if any(dict(stage.parts)[name] for stage in stages)]
    rows = tuple(
        (
            str(stage.first) if stage.first == stage.last else f"{stage.first}-{stage.last}",
            *(gib(dict(stage.parts)[name]) for name in names),
            gib(stage.peak),
        )
        for stage in stages
    )
    if len(rows) > _STAGES:
        fullest = max(range(len(rows)), key=lambda index: stages[index].peak)
        shown = sorted({*range(_STAGES - 3), fullest, len(rows) - 2, len(rows) - 1})
        left = tuple("" for _ in (*names, "allocated"))
        rows = tuple(
            line
            for before, index in zip([-1, *shown], shown, strict=False)
            for line in ((("…", *left),) if index > before + 1 else ()) + (rows[index],)
        )
    return Grid(("stage", *names, "allocated"), rows, title="GiB at the peak of every pipeline stage")


def to_dict(breakdown: Breakdown) -> dict[str, Any]:
    """Return the row as plain data."""
    item = breakdown.item
    return {
        "schema": "symconfig.validate.row/1",
        "id": item.row.id,
        "source": breakdown.source,
        "stated": {name: dict(values) for name, values in breakdown.stated},
        "assumed": [{"name": name, "value": value} for name, value in item.case.taken],
        "documented": [{"name": name, "value": value} for name, value in item.case.documented],
        "reason": item.case.reason if item.case.taken or item.case.documented else None,
        "time": {
            "predicted_s": tidy(sum(part.value for part in breakdown.time)),
            "measured_s": tidy(item.time[1]) if item.time else None,
            "measured_from": item.time_from,
            "interval": {"low": tidy(breakdown.interval.low), "high": tidy(breakdown.interval.high)},
            "parts": [_part(part, "seconds") for part in breakdown.time],
            "work": [
                {"name": each.name, **_tidied(each, "forward_s", "backward_s", "hidden_s")} for each in breakdown.work
            ],
        },
        "memory": {
            "figure": breakdown.figure,
            "predicted_bytes": tidy(sum(part.value for part in breakdown.memory)),
            "measured_bytes": tidy(item.memory[1]) if item.memory else None,
            "parts": [_part(part, "bytes") for part in breakdown.memory],
        },
        "stages": [
            {
                **picked(stage, "first", "last"),
                "peak_bytes": tidy(stage.peak),
                "parts": {name: tidy(value) for name, value in stage.parts},
            }
            for stage in breakdown.stages
        ],
        "device_bytes": item.prediction.predicted.device_bytes,
        "predicted_oom": item.oom,
        "measured_oom": bool(item.row.measured.oom),
    }


def _tidied(thing: object, *names: str) -> dict[str, float]:
    return {name: tidy(value) for name, value in picked(thing, *names).items()}


def _part(part: Part, unit: str) -> dict[str, Any]:
    needed = None if part.needed is None else tidy(part.needed)
    return {"name": part.name, unit: tidy(part.value), "share": tidy(part.share), "needed_factor": needed}
