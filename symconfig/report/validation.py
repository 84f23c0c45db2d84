"""Predictions held against measurements: the scores of `symconfig validate`, and a running job's log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from symconfig.format import count, gib, grouped, percent, picked, seconds, several, signed
from symconfig.measured.comparison import CLOSE, MOST, Comparison
from symconfig.report.grid import Block, Grid, present, titled
from symconfig.solve.candidate import tidy

if TYPE_CHECKING:
    from symconfig.measured.cases import Case
    from symconfig.measured.judge import Judged
    from symconfig.measured.score import Error, Growth, Oom, Scored, Source, Sweep


Figures = Mapping[str, Any]


def validation_blocks(scores: Sequence[Source]) -> list[Block]:
    """Return the tables of errors, of runs out of memory, of sweeps and of growth with GPUs, and texts: numbers of
    rows, releases of software never measured, options ignored, rows skipped and why (by source and reason, with up to
    three ids); empty parts are left out.
    """
    sources = [_source(source) for source in scores]
    skipped = (
        f"{source.name}, {several(len(ids), 'row')}: {reason.rstrip('.')} "
        f"({', '.join(ids[:3])}{', …' if len(ids) > 3 else ''})"
        for source in scores
        for reason, ids in grouped((why, row) for row, why in source.skipped).items()
    )
    return present(
        *errors(sources),
        out_of_memory(sources),
        sweeps(sources),
        _growths(scores),
        _counts(scores),
        _counted("Software not measured", scores, lambda case: [case.unmeasured] if case.unmeasured else []),
        _counted("Stated, and not predicted with", scores, lambda case: case.ignored),
        titled("Skipped", skipped, ""),
    )


def _growths(scores: Sequence[Source]) -> Grid:
    """Return the table of how much longer a plan's step is on the most GPUs than on the fewest: source, model, both
    numbers, growth measured and predicted in percent, and their difference in points.
    """
    rows = (
        {
            "source": source.name,
            "model": growth.model,
            "GPUs": f"{count(growth.gpus[0])} to {count(growth.gpus[1])}",
            "measured": signed(growth.measured),
            "predicted": signed(growth.predicted),
            "points off": f"{100 * (growth.predicted - growth.measured):+.1f}",
        }
        for source in scores
        for growth in source.growths
    )
    return Grid.of(rows, "Growth of a step, one plan on the fewest GPUs and on the most", words=("source", "model"))


def _counts(scores: Sequence[Source]) -> str:
    """Return sentences with the numbers of scored and skipped rows; if any is scored, on what the tables' columns mean;
    if any rests on assumed options, on how many do.
    """
    judged = sum(len(source.rows) for source in scores)
    skipped = sum(len(source.skipped) for source in scores)
    assumed = sum(len(source.assumed.rows) for source in scores)
    share = percent(skipped / (judged + skipped)) if skipped else ""
    text = f"{judged} of {judged + skipped} rows scored, {skipped} skipped{f' ({share})' if share else ''}."
    if judged:
        text += (
            "\nMAPE: mean of the absolute errors, relative to what was measured. bias: their mean with the sign, "
            "+ where too much is predicted. in 10 %: share of the rows that are off by less."
        )
    if assumed:
        text += (
            f"\n* {several(assumed, 'row')} leave{'s' * (assumed == 1)} out options that change the prediction; these "
            "are assumed for the whole source (`assumed` of a row in --json)."
        )
    return text


def _counted(title: str, scores: Sequence[Source], of: Callable[[Case], Sequence[str]]) -> str:
    """Return the title and below it a line for each source with the texts that `of` gives for its rows, the most
    frequent first, each with its number of rows; "" if there are none.
    """
    lines = []
    for source in scores:
        counts = Counter(text for item in source.rows for text in of(item.case))
        texts = "; ".join(f"{text} ({several(rows, 'row')})" for text, rows in counts.most_common())
        lines += [f"{source.name}, {texts}"] if counts else []
    return titled(title, lines, "")


def validation_data(scores: Sequence[Source]) -> dict[str, Any]:
    """Return the scores as JSON, symconfig.validate/1: `sources` with their errors, and beside them, for all sources,
    `rows` (prediction and measurement of each scored row) and `skipped` (rows with reasons).
    """
    return {
        "schema": "symconfig.validate/1",
        "sources": [_source(source) for source in scores],
        "rows": [_row(source.name, item) for source in scores for item in source.rows],
        "skipped": [
            {"id": row, "source": source.name, "reason": reason} for source in scores for row, reason in source.skipped
        ],
    }


def _source(source: Source) -> dict[str, Any]:
    """Return a source's scores as JSON: of all rows, and in `stated` and `assumed` of those whose options are all
    stated or partly assumed; the number of skipped rows, sweeps and growths.
    """
    return {
        "name": source.name,
        **_scored(source),
        "skipped": len(source.skipped),
        "sweeps": [_tidied(sweep) for sweep in source.sweeps],
        "growths": [_tidied(growth) for growth in source.growths],
        "stated": _scored(source.stated),
        "assumed": _scored(source.assumed),
    }


def _scored(part: Scored) -> dict[str, Any]:
    """Return the number of rows and their scores as JSON; None for what no row measured."""
    names = ("time", "layer", "memory", "oom")
    return {"rows": len(part.rows), **{name: _tidied(getattr(part, name)) for name in names}}


def _tidied(score: Error | Growth | Oom | Sweep | None) -> dict[str, Any] | None:
    """Return a score as JSON, with rounded figures and lists for tuples; None for None."""
    if score is None:
        return None
    plain = asdict(score).items()
    return {
        name: tidy(value) if isinstance(value, float) else list(value) if isinstance(value, tuple) else value
        for name, value in plain
    }


def _row(source: str, item: Judged) -> dict[str, Any]:
    """Return a row as JSON: predicted and measured values and relative errors. What the row did not measure is None,
    and so is its error; the predicted memory is of the same kind as the measured one, without that the peak.
    """
    predicted = item.prediction.predicted
    m = item.row.measured
    stated = [name for name in ("layer_forward", "layer_backward") if getattr(m, f"{name}_ms") is not None]
    layers = {f"{name}_s": pair for name, pair in zip(stated, item.layers, strict=True)}
    return {
        "id": item.row.id,
        "source": source,
        "sweep": item.row.sweep,
        "assumed": list(item.case.assumed),
        "ignored": list(item.case.ignored),
        "predicted": {
            "step_s": predicted.step_s,
            "memory_bytes": tidy(item.memory[0]) if item.memory else predicted.peak_bytes,
            "device_bytes": predicted.device_bytes,
            "oom": item.oom,
            **{name: tidy(pair[0]) for name, pair in layers.items()},
        },
        "measured": {
            "step_s": tidy(item.time[1]) if item.time else None,
            "step_from": item.time_from,
            "memory_bytes": tidy(item.memory[1]) if item.memory else None,
            "oom": bool(m.oom),
            **{name: tidy(pair[1]) for name, pair in layers.items()},
        },
        "error": {"time": _off(item.time), "memory": _off(item.memory)},
    }


def _off(pair: tuple[float, float] | None) -> float | None:
    return tidy(pair[0] / pair[1] - 1) if pair else None


def errors(sources: Sequence[Figures]) -> tuple[Grid, ...]:
    """Return the tables of errors of step time, layer time and memory."""
    return (
        _error_table(sources, "time", "rows", "Seconds of a step, predicted against measured"),
        _error_table(sources, "layer", "passes", "Seconds of one layer's forward and backward pass"),
        _error_table(sources, "memory", "rows", "Peak memory, predicted against measured"),
    )


def _error_table(sources: Sequence[Figures], quantity: str, counted: str, title: str) -> Grid:
    """Return the table of one quantity's errors by source: number of rows, mean absolute error, bias, share within 10
    %, and the worst error with its row; of memory the worst underestimate instead.
    """
    memory = quantity == "memory"
    last = ("too low by", "lowest row") if memory else ("worst", "worst row")
    rows = (
        (
            name,
            count(each["n"]),
            percent(each["mape"]),
            signed(each["bias"]),
            percent(each["within_10"], 0),
            percent(each["worst_under"]) if memory else signed(each["worst"]),
            each["worst_under_id" if memory else "max_id"] or "",
        )
        for source in sources
        for name, each in _parts(source, quantity)
    )
    return Grid(("source", counted, "MAPE", "bias", "in 10 %", *last), tuple(rows), left=(0, 6), title=title)


def _parts(source: Figures, quantity: str) -> Iterator[tuple[str, Figures]]:
    """Yield (name, errors) of a source, then of its fully stated and its assumed rows if it has both; layers are not
    divided. "*" marks a source whose rows all rest on assumed options. Nothing without errors in this quantity.
    """
    whole, stated, assumed = (part[quantity] for part in (source, source["stated"], source["assumed"]))
    if whole:
        yield source["name"] + ("" if stated or quantity == "layer" else " *"), whole
    if stated and assumed and quantity != "layer":
        yield "  fully stated", stated
        yield "  options assumed *", assumed


def out_of_memory(sources: Sequence[Figures]) -> Grid:
    """Return the table by source of runs that ran out of memory, and how many were predicted to, and of runs that did
    not, and how many were predicted to; without sources that have neither the first nor false alarms.
    """
    rows = (
        {
            "source": source["name"],
            "ran out": count(oom["ran_out"]),
            "found": count(oom["found"]),
            "recall": percent(oom["recall"]) if oom["ran_out"] else "-",
            "ran": count(oom["ran"]),
            "called out": count(oom["false_oom"]),
            "false alarms": percent(oom["false_oom_rate"]) if oom["ran"] else "-",
        }
        for source in sources
        if (oom := source["oom"]) and (oom["ran_out"] or oom["false_oom"])
    )
    title = "Out of memory at no safety margin, where runs ran out or were called so"
    return Grid.of(rows, title, words=("source",))


def sweeps(sources: Sequence[Figures]) -> Grid:
    """Return the table of how well each sweep's plans are ranked: rows, Kendall's tau, mean absolute error, and regret,
    by which the fastest by prediction (the planner's choice) measured longer than the best, or "runs out of memory".
    """
    rows = (
        {
            "sweep": sweep["name"],
            "rows": count(sweep["n"]),
            "ran": count(sweep["timed"]),
            "tau": f"{sweep['kendall_tau']:.2f}",
            "MAPE": percent(sweep["mape"]),
            "the median's": percent(sweep["median_mape"]),
            "regret": _regret(sweep["regret"], sweep["pick_ran_out"]),
            "the fastest by prediction": sweep["pick"],
            "the choice's": _regret(sweep["choice_regret"], sweep["choice_ran_out"]),
        }
        for source in sources
        for sweep in source["sweeps"]
    )
    title = "Ranking of plans; the median's: its time as the only prediction"
    return Grid.of(rows, title, words=("sweep", "the fastest by prediction"))


def _regret(regret: float | None, ran_out: bool) -> str:
    if regret is not None:
        return percent(regret)
    return "runs out of memory" if ran_out else "not timed"


_SHOWN = 4  # causes


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """Return a log's comparison with its prediction as JSON: steady steps (None without), interval, seconds and bytes
    by part (`predicted` is None for a part that is not predicted by itself), differing options, causes and remarks.
    """
    found = comparison
    return {
        "file": found.log.path,
        "steps": None if found.log.steady is None else asdict(found.log.steady),
        "interval_s": list(found.interval),
        "seconds": [asdict(part) for part in found.seconds],
        "bytes": [asdict(part) for part in found.memory],
        "differences": [asdict(one) for one in found.differences],
        "causes": [asdict(one) for one in found.causes],
        "remarks": list(found.log.remarks),
    }


def comparison_blocks(comparison: Comparison) -> list[Block]:
    """Return the table of figures of prediction and log, that of options that differ between script and log, sentences,
    and that of the up to _SHOWN likeliest assumptions any of which would explain the step; empty ones are left out.
    """
    log, found = comparison.log, comparison
    steady = "no steady step" if log.steady is None else several(log.steady.n, "logged time")
    written = [*((" s", seconds, part) for part in found.seconds), *((" GiB", gib, part) for part in found.memory)]
    rows = (
        {
            "": part.name + unit,
            "predicted": "" if part.predicted is None else text(part.predicted),
            "log": text(part.measured),
            "difference": "" if part.ratio is None else signed(part.ratio - 1),
        }
        for unit, text, part in written
    )
    differences = (picked(one, "option", "script", "log") for one in found.differences)
    causes = (
        {
            "assumption": one.name,
            "assumed": f"{one.assumed:.2f}",
            "would have to be": f"{one.needed:.2f}",
            "deviations": f"{one.deviations:.1f}",
        }
        for one in found.causes[:_SHOWN]
    )
    other = "The job runs with other options than the script has"
    return present(
        Grid.of(rows, f"Beside {log.path} ({steady})", words=("",)),
        Grid.of(differences, other, words=("option", "script", "log")),
        "\n".join(_sentences(found)),
        Grid.of(causes, "Any of these alone would explain the step", words=("assumption",)),
    )


def _sentences(found: Comparison) -> Iterator[str]:
    """Yield sentences on the step against its interval, on the options that differ, and on the time that is lost."""
    log = found.log
    if found.seconds:
        low, high = found.interval
        where = "within" if found.as_usual else "outside of"
        yield f"The step is {where} the 90 % interval of its prediction, {seconds(low)} to {seconds(high)} s."
    if found.differences:
        yield "The prediction is of the script; first audit the script with the options that the log prints."
    if not found.causes and not found.is_close:
        yield f"No assumption explains the step alone, within a factor of {MOST:g}."
    if log.steady is not None and log.steady.lost > CLOSE:
        yield f"{percent(log.steady.lost)} of the time is lost in steps slower than the median."
    yield from (f"{remark[0].upper()}{remark[1:]}." for remark in log.remarks)
