"""One operator of a partition in full, and strategies with names beside it."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from symconfig.format import count, general, gib, signed
from symconfig.graph.program.net import Node
from symconfig.report.grid import Block, Grid, present
from symconfig.report.partition_moves import moves
from symconfig.report.partition_said import Contents
from symconfig.report.partition_told import words
from symconfig.solve.partition.account import Compared
from symconfig.solve.partition.reasons import Reason
from symconfig.solve.partition.strategy import layout, worded


def baselines(report: Contents) -> list[Block]:
    """Show strategies with names, the cheapest that fits first, and why others cannot be had."""
    own, training = report.partition, report.partition.costs.training
    rows = [
        ("this partition", report.amount(own.cost), "", gib(own.memory), str(training.turns), training.keep.value, "")
    ]
    missing = []
    for one in sorted(report.compared, key=_standing):
        if one.cost is None or one.memory is None or not isfinite(one.cost):
            missing.append(f"{one.name}: {one.why}")
            continue
        more = signed(one.cost / own.cost - 1)
        how = (str(one.turns), one.keep, _degrees(one, "" if one.fits else "does not fit"))
        rows.append((one.name, report.amount(one.cost), more, gib(one.memory), *how))
    headers = ("strategy", report.unit, "more", "GiB", "microbatches", "keeps", "")
    title = "Strategies with names on the same graph"
    return present(Grid(headers, tuple(rows), left=(0, 5, 6), title=title, marked=0), "\n".join(missing))


def _standing(one: Compared) -> tuple[bool, bool, float]:
    return one.cost is None, not one.fits, one.cost if one.cost is not None else 0.0


def _degrees(one: Compared, why: str) -> str:
    return ", ".join(text for text in (words(one.way) if one.way is not None else "", why) if text)


def explained(report: Contents, v: int) -> Iterator[Block]:
    """Show one operator: its tensors, its collectives, and what else it could do."""
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
