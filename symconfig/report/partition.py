"""The answer of `symconfig partition`: how operators are split and why, what moves, what is held, what others cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from symconfig.cost.partition.costs import Keep
from symconfig.descriptor.mesh import Mesh
from symconfig.format import count, general, gib, microbatches, percent, seconds, short
from symconfig.graph.program.net import Node
from symconfig.report.grid import Block, Grid
from symconfig.report.partition_contents import Contents
from symconfig.report.partition_tables import baselines, explained, moves
from symconfig.report.table import abreast
from symconfig.solve.partition.run import Partition
from symconfig.solve.partition.strategy import does, gains, gathered, layout, worded

KEPT = {
    Keep.USED: "activations kept as they are used",
    Keep.SHARDS: "activations kept as shards and gathered again",
    Keep.BORDERS: "repeated parts run forward again",
}
_NAME, _WORDS = 40, 36  # letters of a cell


def blocks(report: Contents) -> list[Block]:
    """Return the report's blocks; with explained operators only the headline, these operators and the legend."""
    if report.explained:
        return [headline(report), *(block for v in report.explained for block in explained(report, v)), *legend(report)]
    return [
        headline(report),
        strategies(report),
        *legend(report),
        stored(report),
        *([moves(report, report.moved)] if report.moved else []),
        totals(report),
        *(baselines(report) if report.compared else []),
        *(["\n".join(f"Note: {note}" for note in report.notes)] if report.notes else []),
    ]


def headline(report: Contents) -> str:
    """Return the head: program, mesh, folding, cost, memory, proof of optimality, microbatches and recomputation."""
    partition, net = report.partition, report.partition.net
    operators = sum(node.operator is not None for node in net.nodes)
    parameters = sum(node.parameter is not None for node in net.nodes)
    turns, keep = partition.costs.training.turns, partition.costs.training.keep
    what = (
        f"{seconds(partition.cost)} s a step"
        if report.timed
        else f"relative cost {partition.cost:,.6g} (gamma {', '.join(_gammas(partition))})"
    )
    return "\n".join(
        (
            f"{report.subject}, {report.job}".rstrip(", "),
            f"mesh: {meshed(partition.ask.mesh)}, {count(partition.ask.mesh.gpus)} GPUs, cut into axes of "
            + (" x ".join(str(axis.size) for axis in partition.axes) or "1"),
            f"{count(len(net.program.operators))} operators and {count(len(net.program.parameters))} parameters, "
            f"folded into {operators} and {parameters}",
            "",
            f"{what}, {gib(partition.memory)} of {gib(partition.ask.memory_limit)} GiB; {proof(partition)}",
            f"{microbatches(turns)}, {KEPT[keep]}",
        )
    )


def _gammas(partition: Partition) -> Iterator[str]:
    """Yield the gamma of the innermost level, then those of levels that differ, as text."""
    yield f"{partition.gamma:.3g}"
    yield from (f"{weight * partition.gamma:.3g} over {level}" for level, weight in partition.ask.weights.items())


def meshed(mesh: Mesh) -> str:
    """Return the mesh's levels with their bandwidths as text; "one GPU" without levels."""
    levels = (f"{one.size}·{one.name} ({one.bandwidth_bytes_per_s / 1e9:,.0f} GB/s)" for one in mesh.levels)
    return " x ".join(levels) or "one GPU"


def proof(partition: Partition) -> str:
    """Return what is proved of the partition: the optimum, the optimum for these microbatches and recomputation, a
    gap, or nothing.
    """
    how = f"by the {partition.solver} solver"
    fixed = ["microbatches", "what is kept", *(["axes"] if partition.axes != partition.ask.mesh.axes() else [])]
    with_these = "these " + " and ".join([", ".join(fixed[:-1]), fixed[-1]])
    if partition.closed:
        return f"the optimum, proved, {how}" + (" on these axes" if "axes" in fixed else "")
    if partition.optimal:
        return f"{how}, proved to be the optimum with {with_these}"
    if partition.bound > 0:
        return f"{how}, at most {percent(partition.gap)} above the optimum with {with_these}"
    return f"{how}, no bound known"


def strategies(report: Contents) -> Grid:
    """Return the table of operators by their split, equal ones as one row, with the next best split and what it
    costs more.
    """
    rows, groups = [], _groups(report)
    for words, members in groups.items():
        rows.append((words, "", "", "", ""))
        for (name, output, other), (times, more) in members.items():
            cost = report.signed(more) if isfinite(more) else ""
            rows.append((f"  {short(name, _NAME)}", count(times), output, short(other, _WORDS), cost))
    headers = ("operator", "times", "output: dim/parts·level", "or rather", report.unit)
    return Grid(headers, tuple(rows), left=(0, 2, 3), title="How operators are split")


Member = tuple[str, str, str]


def _groups(report: Contents) -> dict[str, dict[Member, tuple[int, float]]]:
    """Return {split: {(name, output, next best split): (number of operators, cost of the next best)}} in program
    order; the cost is infinite if none fits.
    """
    partition, groups = report.partition, dict[str, dict[Member, tuple[int, float]]]()
    for reason in report.reasons:
        node, row = partition.net.nodes[reason.node], partition.rows[reason.node]
        assert node.operator is not None
        output = layout(node.ports[len(node.operator.inputs)], row, partition.axes).text(report.names)
        other = gains(node, row, reason.others[0].row, partition.axes, report.named) if reason.others else "none fits"
        more = reason.others[0].cost - partition.cost if reason.others else float("inf")
        members = groups.setdefault(worded(node, row, partition.axes, report.named), {})
        key = (general(node.name), output[output.index("[") :], other)
        times, before = members.get(key, (0, float("inf")))
        members[key] = (times + node.times, min(before, more))
    return groups


def stored(report: Contents) -> Grid:
    """Return the table of parameters by the sharding of weight, gradient and optimizer state, the largest first."""
    partition = report.partition
    groups: dict[tuple[str, str, str], tuple[list[str], float, int]] = {}
    for node, row in zip(partition.net.nodes, partition.rows, strict=True):
        if node.parameter is not None:
            names, elements, times = groups.setdefault(storage(node, row, report), ([], 0.0, 0))
            names.append(general(node.name))
            size = elements + node.times * node.ports[0].elements
            groups[storage(node, row, report)] = (names, size, times + node.times)
    rows = tuple(
        (_listed(names), count(times), f"{size / 1e9:.3f}", *how)
        for how, (names, size, times) in sorted(groups.items(), key=lambda item: -item[1][1])
    )
    headers = ("parameters", "times", "10^9", "weight", "gradient", "optimizer state")
    return Grid(headers, rows, left=(0, 3, 4, 5), title="How parameters are kept")


def _listed(names: Sequence[str]) -> str:
    every = list(dict.fromkeys(names))
    text = ", ".join(every[:2])
    return short(text + (f" and {len(every) - 2} more" if len(every) > 2 else ""), _NAME)


def storage(node: Node, row: Sequence[int], report: Contents) -> tuple[str, str, str]:
    """Return how (weight, gradient, optimizer state) are sharded, as texts: "whole" if not, "none" if not trained,
    "as the weight" if equal.
    """
    axes, dims = report.partition.axes, {option.name for option in node.options if option.parts}

    def words(least: int) -> str:
        kept = [("flat", gathered(axes, [node.options[o].zero >= least for o in row]))]
        kept += [(report.named(name), parts) for name, parts in does(node, row, axes) if name in dims]
        over = ((name, "/".join(f"{part.size}·{part.level}" for part in parts)) for name, parts in kept if parts)
        return ", ".join(f"{name}/{levels}" for name, levels in over) or "whole"

    assert node.parameter is not None
    weight, gradient, state = words(3), words(2), words(1)
    if not node.parameter.trainable:
        return weight, "none", "none"
    same = "as the weight"
    return weight, same if gradient == weight else gradient, same if state == weight else state


def legend(report: Contents) -> list[Block]:
    """Return a line with the letters of the dims; [] without any."""
    used = [f"{sign} {dim}" for dim, sign in report.names.items()]
    return ["Dims: " + ", ".join(used)] if used else []


def totals(report: Contents) -> Grid:
    """Return the table of the step's time and the GPU's memory by part, side by side; parts of 0 are left out."""
    spent = report.spent
    left = [
        ("computation", spent.computation), ("optimizer", spent.optimizer),
        ("communication that shows", spent.communication), ("kept, over gamma", spent.relative),
    ]  # fmt: skip
    right = [
        ("weights", spent.weights_bytes), ("gradients", spent.gradients_bytes),
        ("optimizer state", spent.optimizer_bytes), ("activations", spent.activations_bytes),
        ("while an operator runs", spent.transient_bytes),
    ]  # fmt: skip
    one = [(name, report.amount(value), percent(value / spent.cost)) for name, value in left if value]
    one += [("step", report.amount(spent.cost), "")]
    if spent.hidden:
        one += [("communication that work hides", report.amount(spent.hidden), "")]
    two = [(name, gib(value), percent(value / spent.memory)) for name, value in right if value]
    two += [("held at the peak", gib(spent.memory), "")]
    heads = ("of a step", report.unit, "share", "", "on a GPU", "GiB", "share")
    return Grid(heads, abreast(one, two), left=(0, 4), title="In total")
