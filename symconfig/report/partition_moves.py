"""The collectives of a partition as a table."""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.format import count, general
from symconfig.report.grid import Grid
from symconfig.report.partition_said import Contents, short
from symconfig.solve.partition.collectives import Moved

MOST_MOVED = 14  # rows; the rest is summed up
_NAME = 36  # letters of a tensor's name


def moves(report: Contents, every: Sequence[Moved]) -> Grid:
    """Tabulate collectives, those alike as one row, those that show most first."""
    groups: dict[tuple[str, str, str, str], list[float]] = {}
    for one in every:
        key = (general(one.tensor), f"{one.kind} over {one.ranks}·{one.level}", str(one.phase), f"{one.amount:g}")
        sums = groups.setdefault(key, [one.amount, 0.0, 0.0, 0.0])
        for at, value in enumerate((one.times, one.cost, one.shown), 1):
            sums[at] += value
    ranked = sorted(groups.items(), key=lambda item: (-item[1][3], -item[1][2], item[0]))
    rows = [
        (
            short(name, _NAME),
            kind,
            phase,
            f"{amount / 1e6:,.1f}",
            count(times),
            report.amount(cost),
            report.amount(shown),
        )
        for (name, kind, phase, _), (amount, times, cost, shown) in ranked[:MOST_MOVED]
    ]
    if rest := ranked[MOST_MOVED:]:
        sums = [sum(values[at] for _, values in rest) for at in (1, 2, 3)]
        last = (count(sums[0]), report.amount(sums[1]), report.amount(sums[2]))
        rows.append((f"{len(rest)} others", "", "", "", *last))
    amount = "MB each" if report.timed else "10^6 each"
    headers = ("tensor", "collective", "when", amount, "times", report.unit, "shows")
    return Grid(headers, tuple(rows), left=(0, 1, 2), title="What moves in a step")
