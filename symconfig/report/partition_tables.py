"""What moves in a partition, one operator in full, and strategies with names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from symconfig.format import count, general, gib, short, signed
from symconfig.graph.program.net import Node
from symconfig.report.grid import Block, Grid, present
from symconfig.report.partition_contents import Contents
from symconfig.solve.partition.collectives import Moved
from symconfig.solve.partition.degrees import AXES, Way
from symconfig.solve.partition.reasons import Reason
from symconfig.solve.partition.strategy import layout, worded

MOST_MOVED = 14  # rows; the rest is summed up
_NAME = 36  # letters of a tensor's name


def moves(report: Contents, every: Sequence[Moved]) -> Grid:
    """Return the table of collectives, equal ones as one row, the most exposed time first; rows after MOST_MOVED are
    summed.
    """
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


def words(way: Way) -> str:
    """Return a strategy's degrees as text: `tp 8, dp 4, sp, ZeRO 1`."""
    named = [(name, getattr(way.degrees, name)) for name in AXES]
    split = [f"{name} {value}" for name, value in named if value > 1] or ["one GPU"]
    split += ["Ulysses"] if way.degrees.cp > 1 and way.cp_comm == "a2a" else []
    split += ["sp"] if way.sequence_parallel else []
    return ", ".join([*split, f"ZeRO {way.zero}"])


def baselines(report: Contents) -> list[Block]:
    """Return the table of named strategies, the cheapest that fits first, and why those without a finite cost cannot
    be used.
    """
    own, training = report.partition, report.partition.costs.training
    rows = [
        ("this partition", report.amount(own.cost), "", gib(own.memory), str(training.turns), training.keep.value, "")
    ]
    missing = []
    for one in sorted(report.compared, key=lambda one: (one.rows is None, not one.fits, one.cost)):
        if not isfinite(one.cost):
            missing.append(f"{one.name}: {one.why}")
            continue
        more = signed(one.cost / own.cost - 1)
        degrees = filter(None, (words(one.way) if one.way is not None else "", "" if one.fits else "does not fit"))
        how = (str(one.training.turns), one.training.keep.value, ", ".join(degrees))
        rows.append((one.name, report.amount(one.cost), more, gib(one.memory), *how))
    headers = ("strategy", report.unit, "more", "GiB", "microbatches", "keeps", "")
    title = "Strategies with names on the same graph"
    return present(Grid(headers, tuple(rows), left=(0, 5, 6), title=title, marked=0), "\n".join(missing))


def explained(report: Contents, v: int) -> Iterator[Block]:
    """Yield an operator's tensors, adjacent collectives (if any) and alternatives. v: its index in the network."""
    partition = report.partition
    node, row = partition.net.nodes[v], partition.rows[v]
    rows = [
        (
            "output" if port.output else "input",
            layout(port, row, partition.axes).text(report.names),
            layout(port, row, partition.axes, backward=True).text(report.names) if port.tensor.gradient else "none",
        )
        for port in node.ports
    ]
    title = f"{general(node.name)} x {count(node.times)}: {worded(node, row, partition.axes, report.named)}"
    yield Grid(("", "tensor", "gradient"), tuple(rows), left=(0, 1, 2), title=title)
    links = set(partition.net.links_of[v])
    adjacent = tuple(one for one in report.moved if one.link in links or (one.link < 0 and one.producer == node.name))
    if adjacent:
        yield moves(report, adjacent)
    reason = next((reason for reason in report.reasons if reason.node == v), None)
    if reason is not None:
        yield _others(report, node, reason)


def _others(report: Contents, node: Node, reason: Reason) -> Grid:
    """Return the table of an operator's alternatives with their additional cost; one that does not fit comes first."""
    partition = report.partition
    rows = [
        (
            worded(node, one.row, partition.axes, report.named), report.signed(one.cost - partition.cost),
            report.amount(one.computation), report.amount(one.communication), gib(one.memory),
            "yes" if one.fits else "no",
        )
        for one in (*([reason.unfit] if reason.unfit is not None else []), *reason.others)
    ]  # fmt: skip
    headers = ("instead", report.unit, "computation", "communication", "GiB", "fits")
    return Grid(headers, tuple(rows), left=(0, 5), title="What else it could do, and what the step would take more")
