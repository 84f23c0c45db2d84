"""The answer of `symconfig size`: the fewest GPUs of each cluster that are in time, and what more or fewer cost."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from symconfig.format import count, percent, seconds, several
from symconfig.report.grid import Block, Grid
from symconfig.runs.sweep.amounts import DAY_S
from symconfig.runs.sweep.columns import COLUMNS
from symconfig.runs.sweep.size import OfCluster, Question, Size, Tried, frontier

_HEADERS = (
    "cluster",
    "GPUs",
    "",
    "days",
    "at the slow end",
    "in time",
    "GPU-hours",
    "cost",
    "step s",
    "MFU",
    "tp",
    "pp",
    "cp",
    "ep",
    "dp",
)


def blocks(size: Size) -> list[Block]:
    """Return all blocks of a size, in order."""
    shown: list[Block] = [headline(size.question), "\n".join(answer(one, size.question) for one in size.clusters)]
    rows = [row for one in size.clusters for row in _rows(one, size.question)]
    if rows:
        cut = [index for index, name in enumerate(_HEADERS) if name != "cost" or any(row[index] for row in rows)]
        shown.append(
            Grid(
                tuple(_HEADERS[index] for index in cut),
                tuple(tuple(row[i] for i in cut) for row in rows),
                left=tuple(place for place, index in enumerate(cut) if index in (0, 2, 5)),
                title="Of each cluster the fewest GPUs that are in time, and the numbers that no other beats "
                "in both time and cost",
            )
        )
    if (over := overall(size)) is not None:
        shown.append(over)
    return [*shown, footer(size)]


def headline(question: Question) -> str:
    """Say what is to be done by when."""
    return (
        f"{question.model.name}: {several(question.tokens, 'token')} in {_span(question.deadline_s)}\n"
        f"global batch {several(question.job['global_batch_size'], 'sequence')} of "
        f"{several(question.job['seq_length'], 'token')}, {count(question.step_tokens)} in all; "
        f"{several(question.steps, 'step')}"
    )


def answer(one: OfCluster, question: Question) -> str:
    """Write one cluster's answer in a sentence."""
    if one.smallest is None:
        return f"{one.name}: {_not_met(one, question)}"
    text = f"{one.name}: {several(one.smallest.gpus, 'GPU')}, {_days(one.smallest.run_s)} days"
    if one.surest is None:
        text += f"; no number up to {count(one.tried[-1].gpus)} is in time at the slow end of what is likely"
    elif one.surest.gpus == one.smallest.gpus:
        text += f", in time also at the slow end of what is likely ({_days(one.surest.slow_s)} days)"
    else:
        text += (
            f"; {count(one.surest.gpus)} to be in time also at the slow end of what is likely "
            f"({_days(one.surest.slow_s)} days)"
        )
    return text + _beaten(one.smallest, one)


def _beaten(smallest: Tried, one: OfCluster) -> str:
    """Say what takes less time and fewer GPU-hours than the fewest GPUs do, if anything does."""
    better = [
        tried
        for tried in frontier(one.planned, lambda tried: tried.gpu_hours)
        if tried.run_s < smallest.run_s and tried.gpu_hours < smallest.gpu_hours
    ]
    if not better:
        return ""
    first = min(better, key=lambda tried: tried.gpus)
    return (
        f"; {several(first.gpus, 'GPU')} need less of both: {_days(first.run_s)} days and "
        f"{count(first.gpu_hours)} GPU-hours, not {count(smallest.gpu_hours)}"
    )


def _not_met(one: OfCluster, question: Question) -> str:
    fastest = one.fastest
    if fastest is None:
        reasons = sorted({tried.reason for tried in one.tried}, key=len)
        return f"no plan for {_listed([tried.gpus for tried in one.tried])} GPUs: {reasons[0]}"
    at_peak = f"{count(one.least)} would be needed even at their peak; " if fastest.gpus < one.least else ""
    return (
        f"cannot be met with at most {count(question.most_gpus)} GPUs: {at_peak}the fastest is "
        f"{_days(fastest.run_s)} days on {count(fastest.gpus)} GPUs"
    )


def _listed(numbers: Sequence[int]) -> str:
    return f"{count(numbers[0])} to {count(numbers[-1])}" if len(numbers) > 1 else count(numbers[0])


def _span(span_s: float) -> str:
    days = span_s / DAY_S
    number, unit = (days, "day") if days >= 1 else (days * 24, "hour")
    return f"{number:g} {unit}{'s' * (number != 1)}"


def _days(span_s: float) -> str:
    days = span_s / DAY_S
    return f"{days:.2f}" if days < 10 else f"{days:,.1f}"


def shown_of(one: OfCluster) -> list[Tried]:
    """Return a cluster's frontier of GPU-hours against time, and its two answers; the fewest GPUs first."""
    chosen = {tried.gpus: tried for tried in frontier(one.planned, lambda tried: tried.gpu_hours)}
    chosen |= {tried.gpus: tried for tried in (one.smallest, one.surest) if tried is not None}
    return [chosen[gpus] for gpus in sorted(chosen)]


def _rows(one: OfCluster, question: Question) -> list[tuple[str, ...]]:
    return [(one.name, count(tried.gpus), *_cells(one, tried, question)) for tried in shown_of(one)]


def _cells(one: OfCluster, tried: Tried, question: Question) -> tuple[str, ...]:
    mark = " and ".join(
        word
        for word, of in (("fewest", one.smallest), ("surely", one.surest))
        if of is not None and of.gpus == tried.gpus
    )
    values = tried.values
    cost = "" if tried.cost is None else count(tried.cost)
    return (
        mark,
        _days(tried.run_s),
        _days(tried.slow_s),
        in_time(tried, question),
        count(tried.gpu_hours),
        cost,
        seconds(float(str(values["step_s"]))),
        percent(float(str(values["mfu"]))),
        *(str(values[name]) for name in ("tp", "pp", "cp", "ep", "dp")),
    )


def in_time(tried: Tried, question: Question) -> str:
    """Say whether it is in time; yes: also at the slow end of what is likely."""
    if tried.slow_s <= question.deadline_s:
        return "yes"
    return "likely" if tried.run_s <= question.deadline_s else "no"


def overall(size: Size) -> Grid | None:
    """Tabulate, if every cluster has a price, what no other number of GPUs beats in both time and cost."""
    both = [(one, tried) for one in size.clusters for tried in one.planned]
    if len(size.clusters) < 2 or not both or any(tried.cost is None for _, tried in both):
        return None
    names = {id(tried): one.name for one, tried in both}
    rows = [
        (
            names[id(tried)],
            count(tried.gpus),
            _days(tried.run_s),
            in_time(tried, size.question),
            count(tried.cost or 0.0),
        )
        for tried in frontier((tried for _, tried in both), lambda one: one.cost or 0.0)
    ]
    return Grid(
        ("cluster", "GPUs", "days", "in time", "cost"),
        tuple(rows),
        left=(0, 3),
        title="Of all clusters the numbers of GPUs that no other beats in both time and cost",
    )


def footer(size: Size) -> str:
    """Say what is not in the figures, and how to go on: with what costs least in time."""
    question = size.question
    share = (
        f"Of the time {percent(question.goodput)} is steps; failures, evaluation, saving and waiting for data take "
        "the rest (--goodput)."
        if question.goodput < 1
        else "Steps run all the time: nothing is counted for failures, evaluation, saving and waiting for data "
        "(--goodput 0.9)."
    )
    tried = sum(len(one.tried) for one in size.clusters)
    lines = [
        share,
        f"{several(tried, 'number')} of GPUs {'was' if tried == 1 else 'were'} planned. One is left out "
        "where it would be too slow even with a tenth more from each GPU than the best one seen.",
    ]
    met = [(one.name, tried) for one in size.clusters for tried in one.planned if tried.run_s <= question.deadline_s]
    if met:
        name, cheapest = min(met, key=lambda pair: (pair[1].cost is None, pair[1].cost or pair[1].gpu_hours))
        lines.append(f"Next:\n  {command(question, name, cheapest.gpus)}")
    return "\n".join(lines)


def command(question: Question, cluster: str, gpus: int) -> str:
    """Return the command of the plan that is behind a number of GPUs."""
    job = question.job
    words = [
        "symconfig",
        "plan",
        "--model",
        str(job["model"]),
        "--cluster",
        cluster,
        "--gpus",
        str(gpus),
        "--global-batch-size",
        str(job["global_batch_size"]),
        "--seq-length",
        str(job["seq_length"]),
    ]
    for name in ("backend", "megatron_version", "precision", "attention", "task"):
        words += [f"--{name.replace('_', '-')}", str(job[name])] if job.get(name) is not None else []
    for name, value in (job.get("limits") or {}).items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    for name, value in (job.get("pins") or {}).items():
        words += ["--pin", f"{name}={value}"]
    return shlex.join([*words, "--out", "out"])


def to_dict(size: Size) -> dict[str, Any]:
    """Return the JSON contract of `symconfig size --json`."""
    question = size.question
    return {
        "schema": "symconfig.size/1",
        "model": question.model.name,
        "tokens": question.tokens,
        "deadline_s": question.deadline_s,
        "goodput": question.goodput,
        "most_gpus": question.most_gpus,
        "job": dict(question.job),
        "steps": question.steps,
        "met": size.met,
        "clusters": [_cluster(one, question) for one in size.clusters],
    }


def _cluster(one: OfCluster, question: Question) -> dict[str, Any]:
    frontiers = {tried.gpus for tried in frontier(one.planned, lambda tried: tried.gpu_hours)}
    return {
        "cluster": one.name,
        "least_gpus_at_peak": one.least,
        "smallest_gpus": one.smallest.gpus if one.smallest else None,
        "surest_gpus": one.surest.gpus if one.surest else None,
        "fastest_gpus": one.fastest.gpus if one.fastest else None,
        "tried": [_tried(tried, question, tried.gpus in frontiers) for tried in one.tried],
    }


def _tried(tried: Tried, question: Question, on_frontier: bool) -> dict[str, Any]:
    if tried.reason:
        return {"gpus": tried.gpus, "planned": False, "reason": tried.reason}
    names = {column.name for column in COLUMNS}
    return {
        "gpus": tried.gpus,
        "planned": True,
        "run_s": tried.run_s,
        "run_high_s": tried.slow_s,
        "in_time": in_time(tried, question),
        "gpu_hours": tried.gpu_hours,
        "cost": tried.cost,
        "frontier": on_frontier,
        "plan": {name: value for name, value in tried.values.items() if name in names and name != "gpu_hours"},
    }
