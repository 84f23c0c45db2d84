"""The answers of commands that make many plans: `symconfig sweep`, and `size`, the fewest GPUs in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from symconfig.format import count, grouped, percent, picked, seconds, several, short
from symconfig.report.grid import Block, Grid, present
from symconfig.report.table import plan_command
from symconfig.runs.sweep.columns import COLUMNS, Value
from symconfig.runs.sweep.job import Points
from symconfig.runs.sweep.run import Status, Swept
from symconfig.runs.sweep.size import DAY_S, OfCluster, Question, Size, Tried, frontier

Record = Mapping[str, Value]

_MOST_REASONS = 8

_MOST_LETTERS = 160

_WORDS = {
    Status.PLANNED: "planned",
    Status.INFEASIBLE: "without a plan that fits",
    Status.REFUSED: "that can never run",
    Status.DEFECT: "stopped by a defect",
    Status.LOST: "lost with their workers",
}


def sweep_blocks(swept: Swept, points: Points, out: Path) -> list[Block]:
    """Return the report of a sweep: numbers of plans by status, and if there are any, of excluded combinations and rows
    done before, and rules that match nothing; a table of each model and cluster's fastest and cheapest plan, their
    caveats, a table of the reasons of points without a plan, and a line on rows written and points left to do.
    """
    records = swept.records
    planned = [record for record in records if record["status"] == Status.PLANNED]
    caveats = (
        f"{record['model']} on {record['cluster']}, {name}: {record['caveats']}"
        for name, record in _best(planned)
        if record.get("caveats")
    )
    left = len(swept.points) - len(swept.rows)
    more = f"; {count(left)} left: the same command goes on from there" if left else ""
    done = f"wrote {several(len(records), 'row')} into {out}{more}"
    bests = (
        {"model": str(record["model"]), "cluster": str(record["cluster"]), "": name, **_cells(record)}
        for name, record in _best(planned)
    )
    title = "Of each model and cluster the most tokens a second, and the fewest GPU-hours"
    best = Grid.of(bests, title, words=("model", "cluster", ""))
    counts = [f"{count(swept.counts[status])} {words}" for status, words in _WORDS.items() if swept.counts[status]]
    lines = [f"{several(len(swept.points), 'plan')} of {several(points.combinations, 'combination')}: "]
    lines[0] += ", ".join(counts) or "none yet"
    lines += [f"excluded by rules: {count(points.excluded)}"] if points.excluded else []
    lines += [f"rule {number} of `exclude` matches no combination" for number in points.idle]
    lines += [f"done before: {count(swept.known)}"] if swept.known else []
    return present("\n".join(lines), best, *caveats, reasons(records), done)


def _best(planned: Iterable[Record]) -> Iterator[tuple[str, Record]]:
    """Yield ("fastest", record) and ("cheapest", record) of each model and cluster, by tokens per second and GPU-hours;
    one pair, "fastest, cheapest", if they are the same.
    """
    for members in grouped(((one["model"], one["cluster"]), one) for one in planned).values():
        fastest = max(members, key=lambda record: _number(record, "tokens_per_s"))
        cheapest = min(members, key=lambda record: _number(record, "gpu_hours"))
        both = fastest is cheapest
        yield from (("fastest, cheapest" if both else "fastest", fastest), ("cheapest", cheapest))[: 2 - both]


def _cells(record: Record) -> dict[str, str]:
    """Return {header: cell} of a plan in the table: GPUs, batch, sequence length, degrees, step in seconds, MFU, tokens
    per second of all GPUs, and GPU-hours for 10^9 tokens.
    """
    whole = {"GPUs": "gpus", "batch": "global_batch_size", "sequence": "seq_length"}
    whole |= {name: name for name in ("tp", "pp", "cp", "ep", "dp")}
    return {
        **{head: f"{record[name]:,}" for head, name in whole.items()},
        "step s": seconds(_number(record, "step_s")),
        "MFU": percent(_number(record, "mfu")),
        "tokens/s": count(_number(record, "tokens_per_s")),
        "GPU-hours/G tokens": f"{_number(record, 'gpu_hours'):,.1f}",
    }


def _number(record: Record, name: str) -> float:
    value = record[name]
    assert isinstance(value, int | float)
    return float(value)


def reasons(records: Iterable[Record]) -> Grid:
    """Return the table (number of points, status, reason) of points without a plan, the most frequent first; all
    reasons after the first _MOST_REASONS share one row with their total.
    """
    counts = Counter(
        (str(record["status"]), short(str(record["reason"]), _MOST_LETTERS))
        for record in records
        if record["status"] != Status.PLANNED
    )
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [(count(number), status, reason) for (status, reason), number in ordered[:_MOST_REASONS]]
    if len(ordered) > _MOST_REASONS:
        rest = sum(number for _, number in ordered[_MOST_REASONS:])
        rows.append((count(rest), "", "for other reasons, in the table"))
    return Grid(("plans", "status", "reason"), tuple(rows), left=(1, 2), title="Why others have no plan")


def sweep_data(swept: Swept, points: Points, out: Path) -> dict[str, Any]:
    """Return the JSON of `symconfig sweep --json`: path of the table, numbers of combinations, points and rows by
    status, and all rows as {column: value}, None for columns that a row lacks.
    """
    names = [column.name for column in COLUMNS]
    return {
        "schema": "symconfig.sweep/1",
        "table": str(out),
        "combinations": points.combinations,
        "excluded": points.excluded,
        "idle_rules": list(points.idle),
        "points": len(swept.points),
        "done": len(swept.rows),
        **picked(swept, "known", "interrupted"),
        "counts": {str(status): swept.counts[status] for status in Status},
        "rows": [{name: record.get(name) for name in names} for record in swept.records],
    }


_TITLE = "Fewest GPUs in time, and the Pareto front of time and GPU-hours, of each cluster"


def size_blocks(size: Size) -> list[Block]:
    """Return the report: headline (tokens, deadline in days or, below one, hours; batch and steps), an answer per
    cluster, the table of numbers of GPUs (with cost only if there are prices), caveats of those shown, and footer.
    """
    answers = "\n".join(answer(one, size.question) for one in size.clusters)
    rows = [_row(one, tried, size.question) for one in size.clusters for tried in shown_of(one)]
    if not any(row["cost"] for row in rows):
        rows = [{name: cell for name, cell in row.items() if name != "cost"} for row in rows]
    chosen = Grid.of(rows, _TITLE, words=("cluster", "", "in time"))
    shown = ((one.name, tried) for one in size.clusters for tried in shown_of(one))
    notes = [
        f"{name}, {several(tried.gpus, 'GPU')}: {text}"
        for name, tried in shown
        if (text := tried.values.get("caveats"))
    ]
    notes += [
        f"{one.name}, {several(tried.gpus, 'GPU')}: not known, planning failed: {tried.reason}"
        for one in size.clusters
        for tried in one.tried
        if tried.failed
    ]
    question, days = size.question, size.question.deadline_s / DAY_S
    number, unit = (days, "day") if days >= 1 else (days * 24, "hour")
    headline = (
        f"{question.model.name}: {several(question.tokens, 'token')} in {number:g} {unit}{'s' * (number != 1)}\n"
        f"global batch {several(question.job['global_batch_size'], 'sequence')} of "
        f"{several(question.job['seq_length'], 'token')}; {several(question.steps, 'step')}"
    )
    return present(headline, answers, chosen, *notes, footer(size))


def answer(one: OfCluster, question: Question) -> str:
    """Return one cluster's sentence: the fewest GPUs in time, and the fewest in time even at the slow end of the
    interval, or that none is. If none is in time, the fastest number; if no number has a plan, the shortest of their
    reasons, of those that did not fail if there are any.
    """
    if one.smallest is None and one.fastest is None:
        ends = " to ".join(map(count, dict.fromkeys((one.tried[0].gpus, one.tried[-1].gpus))))
        answered = [tried for tried in one.tried if not tried.failed]
        reason = min({tried.reason for tried in answered or one.tried}, key=lambda text: (len(text), text))
        return f"{one.name}: {'no plan' if answered else 'planning failed'} for {ends} GPUs: {reason}"
    if one.smallest is None:
        assert one.fastest is not None
        return (
            f"{one.name}: not in time with at most {count(question.most_gpus)} GPUs: the fastest is "
            f"{_days(one.fastest.run_s)} days on {count(one.fastest.gpus)}"
        )
    text = f"{one.name}: {several(one.smallest.gpus, 'GPU')}, {_days(one.smallest.run_s)} days; "
    if one.surest is None:
        return f"{text}none of up to {count(one.tried[-1].gpus)} GPUs is in time at the slow end of the 90 % interval"
    return f"{text}{count(one.surest.gpus)} to be in time at the slow end, too ({_days(one.surest.slow_s)} days)"


def _days(span_s: float) -> str:
    days = span_s / DAY_S
    return f"{days:.2f}" if days < 10 else f"{days:,.1f}"


def shown_of(one: OfCluster) -> list[Tried]:
    """Return the tried numbers to show, rising: the Pareto front of GPU-hours and time, and the two answers."""
    chosen = {tried.gpus: tried for tried in frontier(one.planned, lambda tried: tried.gpu_hours)}
    chosen |= {tried.gpus: tried for tried in (one.smallest, one.surest) if tried is not None}
    return [chosen[gpus] for gpus in sorted(chosen)]


def _row(one: OfCluster, tried: Tried, question: Question) -> dict[str, str]:
    """Return {header: cell} of one number of GPUs. The mark (header "") is "fewest" if it is the smallest in time as
    predicted, "surely" if the smallest in time at the slow end of the interval; cost is "" without a price.
    """
    mark = " and ".join(
        word
        for word, of in (("fewest", one.smallest), ("surely", one.surest))
        if of is not None and of.gpus == tried.gpus
    )
    values = tried.values
    return {
        "cluster": one.name,
        "GPUs": count(tried.gpus),
        "": mark,
        "days": _days(tried.run_s),
        "at the slow end": _days(tried.slow_s),
        "in time": in_time(tried, question),
        "GPU-hours": count(tried.gpu_hours),
        "cost": "" if tried.cost is None else count(tried.cost),
        "step s": seconds(float(str(values["step_s"]))),
        "MFU": percent(float(str(values["mfu"]))),
        **{name: str(values[name]) for name in ("tp", "pp", "cp", "ep", "dp")},
    }


def in_time(tried: Tried, question: Question) -> str:
    """Return "yes" if in time even at the slow end, "likely" if only as predicted, else "no"."""
    if tried.slow_s <= question.deadline_s:
        return "yes"
    return "likely" if tried.run_s <= question.deadline_s else "no"


def footer(size: Size) -> str:
    """Return what the figures leave out, the number of plans made, and the command for a plan in time, if any: the
    cheapest of those with a cost, else the one of fewest GPU-hours.
    """
    question = size.question
    lines = [
        f"Steps run for {percent(question.goodput)} of the time (--goodput); failures, evaluation, saving and waiting "
        "for data take the rest.",
        f"{several(sum(len(one.tried) for one in size.clusters), 'number')} of GPUs planned.",
    ]
    met = [(one.name, tried) for one in size.clusters for tried in one.planned if tried.run_s <= question.deadline_s]
    if met:
        name, cheapest = min(met, key=lambda pair: (pair[1].cost is None, pair[1].cost or pair[1].gpu_hours))
        job = {name: value for name, value in question.job.items() if name not in ("limits", "pins")}
        fields = {**job, "cluster": name, "gpus": cheapest.gpus, **(question.job.get("limits") or {})}
        lines.append(f"Next:\n  {plan_command(fields, question.job.get('pins') or {})}")
    return "\n".join(lines)


def size_data(size: Size) -> dict[str, Any]:
    """Return the JSON of `symconfig size --json`: model, tokens, deadline, goodput, job and steps, whether any cluster
    meets the deadline as predicted, and each cluster's answers and tried numbers of GPUs.
    """
    question = size.question
    return {
        "schema": "symconfig.size/1",
        "model": question.model.name,
        **picked(question, "tokens", "deadline_s", "goodput", "most_gpus"),
        "job": dict(question.job),
        "steps": question.steps,
        "met": size.met,
        "clusters": [_cluster(one, question) for one in size.clusters],
    }


def _cluster(one: OfCluster, question: Question) -> dict[str, Any]:
    """Return a cluster's answers as JSON: the fewest GPUs in time (as predicted; surely) and the fastest number, None
    where there is none, the least number at peak FLOP/s, and all tried ones.
    """
    frontiers = {tried.gpus for tried in frontier(one.planned, lambda tried: tried.gpu_hours)}
    answers = {"smallest_gpus": one.smallest, "surest_gpus": one.surest, "fastest_gpus": one.fastest}
    return {
        "cluster": one.name,
        "least_gpus_at_peak": one.least,
        **{name: tried.gpus if tried else None for name, tried in answers.items()},
        "tried": [_tried(tried, question, tried.gpus in frontiers) for tried in one.tried],
    }


def _tried(tried: Tried, question: Question, on_frontier: bool) -> dict[str, Any]:
    """Return one number of GPUs as JSON: seconds of the run, whether it is in time, GPU-hours, cost, whether it is on
    the Pareto front, and the plan's columns; without a plan only the reason.
    """
    if tried.reason:
        return {"gpus": tried.gpus, "planned": False, **picked(tried, "failed", "reason")}
    names = {column.name for column in COLUMNS}
    return {
        "gpus": tried.gpus,
        "planned": True,
        "run_s": tried.run_s,
        "run_high_s": tried.slow_s,
        "in_time": in_time(tried, question),
        **picked(tried, "gpu_hours", "cost"),
        "frontier": on_frontier,
        "plan": {name: value for name, value in tried.values.items() if name in names and name != "gpu_hours"},
    }
