"""The answer of `symconfig partition`: how operators are split and why, what moves, what is held, what others cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite, prod

from symconfig.cost.partition.costs import Keep
from symconfig.descriptor.mesh import Mesh
from symconfig.format import count, general, gib, milliseconds, percent, seconds
from symconfig.graph.program.net import Node
from symconfig.report.grid import Block, Grid
from symconfig.report.partition_moves import moves
from symconfig.report.partition_others import baselines, explained
from symconfig.report.partition_said import Said, short
from symconfig.report.partition_told import meeting
from symconfig.solve.partition.run import Partition
from symconfig.solve.partition.strategy import Part, does, gains, gathered, layout, worded

KEPT = {
    Keep.USED: "activations kept as they are used",
    Keep.SHARDS: "activations kept as shards and gathered again",
    Keep.BORDERS: "repeated parts run forward again",
}
_NAME, _WORDS = 40, 36  # letters of a cell


def blocks(said: Said) -> list[Block]:
    """Everything, in order; of an explained operator that alone, after the headline."""
    if said.explained:
        return [headline(said), *(block for v in said.explained for block in explained(said, v)), *legend(said)]
    shown: list[Block] = [headline(said), strategies(said), *legend(said), stored(said)]
    if said.moved:
        shown.append(moves(said, said.moved))
    shown += [totals(said), *clocked(said)]
    if said.compared:
        shown += baselines(said)
    shown += meeting(said)
    notes = "\n".join(f"Note: {note}" for note in said.notes)
    return [*shown, notes] if notes else shown


def headline(said: Said) -> str:
    found, net = said.found, said.found.net
    operators = sum(node.operator is not None for node in net.nodes)
    parameters = sum(node.parameter is not None for node in net.nodes)
    turns, keep = found.costs.training.turns, found.costs.training.keep
    what = (
        f"{seconds(found.cost)} s a step"
        if said.timed
        else f"relative cost {found.cost:,.6g} (gamma {', '.join(_gammas(found))})"
    )
    return "\n".join(
        (
            f"{said.subject}, {said.job}".rstrip(", "),
            f"mesh: {meshed(found.ask.mesh)}, {count(found.ask.mesh.gpus)} GPUs, cut into axes of "
            + (" x ".join(str(axis.size) for axis in found.axes) or "1"),
            f"{count(len(net.program.operators))} operators and {count(len(net.program.parameters))} parameters, "
            f"folded into {operators} and {parameters}",
            "",
            f"{what}, {gib(found.memory)} of {gib(found.ask.memory_limit)} GiB; {proof(found)}",
            f"{turns} microbatch{'es' if turns > 1 else ''}, {KEPT[keep]}",
        )
    )


def _gammas(found: Partition) -> Iterator[str]:
    """Yield the gamma of the innermost level, and of those that have another."""
    yield f"{found.gamma:.3g}"
    yield from (f"{weight * found.gamma:.3g} over {level}" for level, weight in found.ask.weights.items())


def meshed(mesh: Mesh) -> str:
    """Return the levels in words."""
    levels = (f"{one.size}·{one.name} ({one.bandwidth_bytes_per_s / 1e9:,.0f} GB/s)" for one in mesh.levels)
    return " x ".join(levels) or "one GPU"


def proof(found: Partition) -> str:
    """What is known about others."""
    how = f"by the {found.solver} solver"
    fixed = ["microbatches", "what is kept", *(["axes"] if found.axes != found.ask.mesh.axes() else [])]
    with_these = "these " + " and ".join([", ".join(fixed[:-1]), fixed[-1]])
    if found.closed:
        return f"the optimum, proved, {how}" + (" on these axes" if "axes" in fixed else "")
    if found.optimal:
        return f"{how}, proved to be the optimum with {with_these}"
    if found.bound > 0:
        return f"{how}, at most {percent(found.gap)} above the optimum with {with_these}"
    return f"{how}, no bound known"


def strategies(said: Said) -> Grid:
    """One row for operators alike, below what they do."""
    rows, groups = [], _groups(said)
    for words, members in groups.items():
        rows.append((words, "", "", "", ""))
        for (name, output, other), (times, more) in members.items():
            cost = said.signed(more) if isfinite(more) else ""
            rows.append((f"  {short(name, _NAME)}", count(times), output, short(other, _WORDS), cost))
    headers = ("operator", "times", "output: dim/parts·level", "or rather", said.unit)
    return Grid(headers, tuple(rows), left=(0, 2, 3), title="How operators are split")


Member = tuple[str, str, str]


def _groups(said: Said) -> dict[str, dict[Member, tuple[int, float]]]:
    """By what they do, in the order of the program: name, output and next best -> times, and what that would cost."""
    found, groups = said.found, dict[str, dict[Member, tuple[int, float]]]()
    for reason in said.reasons:
        node, row = found.net.nodes[reason.node], found.rows[reason.node]
        assert node.operator is not None
        output = layout(node.ports[len(node.operator.inputs)], row, found.axes).text(said.names)
        other = gains(node, row, reason.others[0].row, found.axes, said.named) if reason.others else "none fits"
        more = reason.others[0].cost - found.cost if reason.others else float("inf")
        members = groups.setdefault(worded(node, row, found.axes, said.named), {})
        key = (general(node.name), output[output.index("[") :], other)
        times, before = members.get(key, (0, float("inf")))
        members[key] = (times + node.times, min(before, more))
    return groups


def stored(said: Said) -> Grid:
    """Parameters by how they are kept."""
    found = said.found
    groups: dict[tuple[str, str, str], tuple[list[str], float, int]] = {}
    for node, row in zip(found.net.nodes, found.rows, strict=True):
        if node.parameter is not None:
            names, elements, times = groups.setdefault(storage(node, row, said), ([], 0.0, 0))
            names.append(general(node.name))
            size = elements + node.times * prod(node.ports[0].sizes)
            groups[storage(node, row, said)] = (names, size, times + node.times)
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


def storage(node: Node, row: Sequence[int], said: Said) -> tuple[str, str, str]:
    """Say how the weight, its gradient and the optimizer state are kept."""
    axes = said.found.axes

    def words(least: int) -> str:
        kept = [("flat", gathered(axes, [node.options[o].zero >= least for o in row]))]
        kept += [(said.named(name), parts) for name, parts in does(node, row, axes) if _is_dim(node, name)]
        return ", ".join(f"{name}/{_over(parts)}" for name, parts in kept if parts) or "whole"

    assert node.parameter is not None
    weight, gradient, state = words(3), words(2), words(1)
    if not node.parameter.trainable:
        return weight, "none", "none"
    same = "as the weight"
    return weight, same if gradient == weight else gradient, same if state == weight else state


def _is_dim(node: Node, name: str) -> bool:
    return any(option.name == name and option.parts for option in node.options)


def legend(said: Said) -> list[Block]:
    """What the letters of dims stand for."""
    used = [f"{sign} {dim}" for dim, sign in said.names.items()]
    return ["Dims: " + ", ".join(used)] if used else []


def _over(parts: Sequence[Part]) -> str:
    return "/".join(f"{part.size}·{part.level}" for part in parts)


def totals(said: Said) -> Grid:
    """The step and the memory by kind, side by side."""
    spent = said.spent
    left = [
        ("computation", spent.computation), ("optimizer", spent.optimizer),
        ("communication that shows", spent.communication), ("kept, over gamma", spent.relative),
    ]  # fmt: skip
    right = [
        ("weights", spent.weights_bytes), ("gradients", spent.gradients_bytes),
        ("optimizer state", spent.optimizer_bytes), ("activations", spent.activations_bytes),
        ("while an operator runs", spent.transient_bytes),
    ]  # fmt: skip
    one = [(name, said.amount(value), percent(value / spent.cost)) for name, value in left if value]
    one += [("step", said.amount(spent.cost), "")]
    if spent.hidden:
        one += [("communication that work hides", said.amount(spent.hidden), "")]
    two = [(name, gib(value), percent(value / spent.memory)) for name, value in right if value]
    two += [("held at the peak", gib(spent.memory), "")]
    height = max(len(one), len(two))
    empty = ("", "", "")
    one, two = one + [empty] * (height - len(one)), two + [empty] * (height - len(two))
    rows = tuple((*a, "", *b) for a, b in zip(one, two, strict=True))
    return Grid(("of a step", said.unit, "share", "", "on a GPU", "GiB", "share"), rows, left=(0, 4), title="In total")


def clocked(said: Said) -> list[Block]:
    """Show the step as the planner counts it."""
    clock = said.clock
    if clock is None:
        return []
    parts = (
        ("computation", clock.computation_s), ("waits for launches", clock.waiting_s),
        ("collectives of layers", clock.layers_s), ("of weights", clock.weights_s), ("optimizer", clock.optimizer_s),
        ("framework", clock.overhead_s), ("step", clock.step_s),
    )  # fmt: skip
    row = tuple(milliseconds(value) for _, value in parts)
    title = "The same step by the planner's clock, in ms: what hides does so behind all work of its time"
    return [Grid(tuple(name for name, _ in parts), (row,), title=title)]
