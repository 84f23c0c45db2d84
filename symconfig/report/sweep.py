"""The answer of `symconfig sweep`: how many have a plan, the best of every model and cluster, why others have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from symconfig.format import count, grouped, percent, picked, seconds, several, short
from symconfig.report.grid import Block, Grid, present
from symconfig.runs.sweep.columns import COLUMNS, Value
from symconfig.runs.sweep.job import Points
from symconfig.runs.sweep.pool import Status
from symconfig.runs.sweep.run import Swept

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


def blocks(swept: Swept, points: Points, out: Path) -> list[Block]:
    """Return the report of a sweep: counts, best plans, caveats, reasons without plan, and what is left to do."""
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
    return present(headline(swept, points), bests(planned), *caveats, reasons(records), done)


def headline(swept: Swept, points: Points) -> str:
    """Return lines with the numbers of plans by status ("none yet" without any), and, if there are any, excluded
    combinations, rules that match nothing, and rows done before.
    """
    counts = [f"{count(swept.counts[status])} {words}" for status, words in _WORDS.items() if swept.counts[status]]
    lines = [f"{several(len(swept.points), 'plan')} of {several(points.combinations, 'combination')}: "]
    lines[0] += ", ".join(counts) or "none yet"
    lines += [f"excluded by rules: {count(points.excluded)}"] if points.excluded else []
    lines += [f"rule {number} of `exclude` matches no combination" for number in points.idle]
    lines += [f"done before: {count(swept.known)}"] if swept.known else []
    return "\n".join(lines)


def bests(planned: Iterable[Record]) -> Grid:
    """Return the table of each model and cluster's plan of most tokens/s and of fewest GPU-hours, once if equal."""
    rows = [
        {"model": str(record["model"]), "cluster": str(record["cluster"]), "": name, **_cells(record)}
        for name, record in _best(planned)
    ]
    title = "Of each model and cluster the most tokens a second, and the fewest GPU-hours"
    return Grid.of(rows, title, words=("model", "cluster", ""))


def _best(planned: Iterable[Record]) -> Iterator[tuple[str, Record]]:
    """Yield (name, record) of each model and cluster's fastest and cheapest plan; one entry if they are the same."""
    for members in grouped(((one["model"], one["cluster"]), one) for one in planned).values():
        fastest = max(members, key=lambda record: _number(record, "tokens_per_s"))
        cheapest = min(members, key=lambda record: _number(record, "gpu_hours"))
        both = fastest is cheapest
        yield from (("fastest, cheapest" if both else "fastest", fastest), ("cheapest", cheapest))[: 2 - both]


def _cells(record: Record) -> dict[str, str]:
    """Return the cells of a plan: GPUs, batch, sequence, degrees, step, MFU, tokens/s and GPU-hours per 10^9 tokens."""
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
    """Return the table of (number, status, reason) of points without a plan, the most frequent first; reasons after
    _MOST_REASONS rows are one row with their total.
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


def to_dict(swept: Swept, points: Points, out: Path) -> dict[str, Any]:
    """Return the JSON of `symconfig sweep --json`: counts and all rows, with None for columns that a row lacks."""
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
