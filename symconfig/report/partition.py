"""The answer of `symconfig partition`: how operators are split, what moves, what memory it takes; of `--stages` also
where the graph is cut, and what each stage runs on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from string import ascii_lowercase

from symconfig.cost.partition.costs import Keep, Objective
from symconfig.format import count, general, gib, microbatches, milliseconds, percent, seconds, several, short, signed
from symconfig.graph import dims as d
from symconfig.graph.program.net import Net, Node
from symconfig.report.grid import Block, Grid, abreast, present
from symconfig.solve.partition.account import Moved, Spent
from symconfig.solve.partition.pipeline.run import Pipeline
from symconfig.solve.partition.rewritten import Rewritten
from symconfig.solve.partition.rows import does, gathered, layout, worded
from symconfig.solve.partition.run import Ask, Partition

KEPT = {
    Keep.USED: "activations kept as they are used",
    Keep.SHARDS: "activations kept as shards and gathered again",
    Keep.BORDERS: "repeated parts run forward again",
}
MOST_MOVED = 14  # rows of collectives; the rest is summed up
_NAME = 40  # letters of an operator's name
_STAGE_NAME = 30  # the same of a stage's first and last operator
_TENSOR = 36  # letters of a tensor's name
_LONG = 12  # letters of a dim that are too many for a table
LETTERS = {
    d.BATCH: "B", d.SEQUENCE: "S", d.KEYS: "T", d.HIDDEN: "D", d.VOCAB: "V", d.HEADS: "A", d.KV_HEADS: "KV",
    d.HEAD_DIM: "C", d.FFN: "F", d.EXPERTS: "E", d.EXPERT_FFN: "G", d.SLOTS: "U", d.EVERY: "U", d.RANK: "R",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a partition's report. subject, job: lines of the headline. explained: indices of operators
    shown in detail. names: letters of dims. rewritten: the rewrites that were searched for; None if they were not.
    """

    subject: str
    job: str
    partition: Partition
    moved: tuple[Moved, ...]
    spent: Spent
    compared: Mapping[str, Partition | None] = field(default_factory=dict)  # by name of a well-known strategy
    explained: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # of dims, as they are written
    rewritten: Rewritten | None = None

    @property
    def timed(self) -> bool:
        return self.partition.ask.objective is Objective.TIME

    def amount(self, cost: float) -> str:
        """Return a cost as text, in milliseconds or relative."""
        return f"{1e3 * cost:,.3f}" if self.timed else f"{cost:,.4g}"

    def named(self, dim: str) -> str:
        return self.names.get(dim, dim)

    @property
    def unit(self) -> str:
        return "ms" if self.timed else "cost"


def names_of(net: Net) -> dict[str, str]:
    """Return {dim: letter} of the dims that a network's tensors have, in the program's order."""
    dims = {dim for node in net.nodes for port in node.ports for dim in port.tensor.dims}
    return names(tuple(dim for dim in net.program.sizes if dim in dims))


def names(dims: Iterable[str]) -> dict[str, str]:
    """Return {dim: letter}: the fixed letter of models' dims; for other dims longer than _LONG the next letters (a … z,
    aa …) that are neither used nor a dim; other short ones have none.
    """
    result = {dim: LETTERS[dim] for dim in dims if dim in LETTERS}
    taken = {*result.values(), *dims}
    free = (a + b for a in ("", *ascii_lowercase) for b in ascii_lowercase)
    for dim in dims:
        if dim not in result and len(dim) > _LONG:
            result[dim] = next(sign for sign in free if sign not in taken)
    return result


def blocks(report: Contents) -> list[Block]:
    """Return the report: headline, rewrites if they were searched for, split of operators, letters of dims, sharding of
    parameters, collectives, totals, baselines and notes. If `report.explained` names operators: only headline, these
    operators and letters.
    """
    if report.explained:
        return [headline(report), *(block for v in report.explained for block in explained(report, v)), *legend(report)]
    return [
        headline(report),
        *([rewrites(report.rewritten)] if report.rewritten is not None else []),
        strategies(report),
        *legend(report),
        stored(report),
        *([moves(report, report.moved)] if report.moved else []),
        totals(report),
        *(baselines(report) if report.compared else []),
        *(["\n".join(f"Note: {note}" for note in report.notes)] if report.notes else []),
    ]


def headline(report: Contents) -> str:
    """Return the head in lines: program and job; mesh and axes; operators and parameters before and after folding;
    cost, memory and what is proved (`proof`); microbatches and what is kept for the backward pass.
    """
    partition, net = report.partition, report.partition.net
    operators = sum(node.operator is not None for node in net.nodes)
    parameters = sum(node.parameter is not None for node in net.nodes)
    turns, keep = partition.costs.training.turns, partition.costs.training.keep
    what = (
        f"{seconds(partition.cost)} s a step"
        if report.timed
        else f"relative cost {partition.cost:,.6g} (gamma {partition.gamma:.3g})"
    )
    return "\n".join(
        (
            f"{report.subject}, {report.job}".rstrip(", "),
            f"mesh: {partition.ask.mesh}, cut into axes of "
            + (" x ".join(str(axis.size) for axis in partition.axes) or "1"),
            f"{count(len(net.program.operators))} operators and {count(len(net.program.parameters))} parameters, "
            f"folded into {operators} and {parameters}",
            "",
            f"{what}, {gib(partition.memory)} of {gib(partition.ask.memory_limit)} GiB; {proof(partition)}",
            f"{microbatches(turns)}, {KEPT[keep]}",
        )
    )


def rewrites(found: Rewritten) -> str:
    """Return the step's milliseconds with and without rewrites, the number of graphs that were solved for, and a line
    for each rewrite that was taken, with the milliseconds after it by the adaptive solver; or that none gains.
    """
    best, before = found.partition.cost, found.before.cost if found.before is not None else inf
    if not found.taken:
        reached, number = "that the rules reach" if found.exhausted else "that were tried", found.solved
        return f"None of the {number} graphs {reached} is faster." if number > 1 else "The rules reach no other graph."
    without = f"{milliseconds(before)} ms without ({signed(best / before - 1)})" if found.before else "none without"
    searched = several(found.solved, "graph") + ("" if found.exhausted else ", though the rules reach more")
    after = [f"{milliseconds(one.cost)} ms" if one.cost < inf else "does not fit" for one in found.taken]
    lines = [f"  {one.rewrite} ({words})" for one, words in zip(found.taken, after, strict=True)]
    head = f"Rewrites: {milliseconds(best)} ms a step, {without}; the best of {searched}. After each:"
    return "\n".join((head, *lines))


def proof(partition: Partition) -> str:
    """Return what is proved of the partition, with its solver: the optimum; the optimum for these microbatches and
    recomputation (and axes, if not the mesh's); a bound on the gap to that; or nothing.
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
    """Return the table of operators grouped by their split, in program order: a row with the split in words, and below
    it one for each name and output layout, with how many operators of the program it stands for.
    """
    partition, groups = report.partition, dict[str, dict[tuple[str, str], int]]()
    for node, row in zip(partition.net.nodes, partition.rows, strict=True):
        if node.operator is not None:
            output = layout(node.ports[len(node.operator.inputs)], row, partition.axes).text(report.names)
            members = groups.setdefault(worded(node, row, partition.axes, report.named), {})
            key = general(node.name), output[output.index("[") :]
            members[key] = members.get(key, 0) + node.times
    rows = []
    for words, members in groups.items():
        rows.append((words, "", ""))
        rows += [(f"  {short(name, _NAME)}", count(times), output) for (name, output), times in members.items()]
    headers = ("operator", "times", "output: dim/parts·level")
    return Grid(headers, tuple(rows), left=(0, 2), title="How operators are split")


def stored(report: Contents) -> Grid:
    """Return the table of parameters, a row for each way to shard weight, gradient and optimizer state (`storage`), the
    most elements first: names (two, and how many more), number of parameters, elements in 10^9, and the three.
    """
    partition = report.partition
    groups: dict[tuple[str, str, str], tuple[list[str], float, int]] = {}
    for node, row in zip(partition.net.nodes, partition.rows, strict=True):
        if node.parameter is not None:
            names, elements, times = groups.setdefault(storage(node, row, report), ([], 0.0, 0))
            names.append(general(node.name))
            size = elements + node.times * node.ports[0].elements
            groups[storage(node, row, report)] = (names, size, times + node.times)
    rows = []
    for how, (names, size, times) in sorted(groups.items(), key=lambda item: -item[1][1]):
        every = list(dict.fromkeys(names))
        named = ", ".join(every[:2]) + (f" and {len(every) - 2} more" if len(every) > 2 else "")
        rows.append((short(named, _NAME), count(times), f"{size / 1e9:.3f}", *how))
    headers = ("parameters", "times", "10^9", "weight", "gradient", "optimizer state")
    return Grid(headers, tuple(rows), left=(0, 3, 4, 5), title="How parameters are kept")


def storage(node: Node, row: Sequence[int], report: Contents) -> tuple[str, str, str]:
    """Return how a parameter's (weight, gradient, optimizer state) are sharded, as texts: flat over the axes of ZeRO
    stage 3 (2 or more, 1 or more), and by split dims; "whole" if not at all. Gradient and state are "none" if it is not
    trained, "as the weight" if their text is the weight's.
    """
    axes, dims = report.partition.axes, {option.name for option in node.options if option.parts}

    def words(least: int) -> str:
        kept = [("flat", gathered(axes, [node.options[o].zero >= least for o in row]))]
        kept += [(report.named(name), parts) for name, parts in does(node, row, axes) if name in dims]
        over = ((name, "/".join(map(str, parts))) for name, parts in kept if parts)
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
    """Return the table of the step's time (or relative cost) and the GPU's memory by part, side by side, with sums;
    parts of 0 are left out, and overlapped communication stands below the sum.
    """
    spent = report.spent
    left = [
        ("computation", spent.computation), ("optimizer", spent.optimizer),
        ("exposed communication", spent.communication), ("kept, over gamma", spent.relative),
    ]  # fmt: skip
    right = [
        ("weights", spent.weights_bytes), ("gradients", spent.gradients_bytes),
        ("optimizer state", spent.optimizer_bytes), ("activations", spent.activations_bytes),
        ("while an operator runs", spent.transient_bytes),
    ]  # fmt: skip
    one = [(name, report.amount(value), percent(value / spent.cost)) for name, value in left if value]
    one += [("step", report.amount(spent.cost), "")]
    if spent.overlapped:
        one += [("overlapped communication", report.amount(spent.overlapped), "")]
    two = [(name, gib(value), percent(value / spent.memory)) for name, value in right if value]
    two += [("held at the peak", gib(spent.memory), "")]
    heads = ("of a step", report.unit, "share", "", "on a GPU", "GiB", "share")
    return Grid(heads, abreast(one, two), left=(0, 4), title="In total")


def moves(report: Contents, every: Sequence[Moved]) -> Grid:
    """Return the table of collectives: tensor, kind and ranks, phase, amount, times, cost, exposed cost. Those equal in
    the first four share a row, the most exposed first; rows after MOST_MOVED are summed in one. every: those to list.
    Amounts are in 10^6 bytes, or elements for the relative cost.
    """
    groups: dict[tuple[str, str, str, str], list[float]] = {}
    for one in every:
        key = (general(one.tensor), f"{one.kind} over {one.ranks}·{one.level}", str(one.phase), f"{one.amount:g}")
        sums = groups.setdefault(key, [one.amount, 0.0, 0.0, 0.0])
        for at, value in enumerate((one.times, one.cost, one.exposed), 1):
            sums[at] += value
    ranked = sorted(groups.items(), key=lambda item: (-item[1][3], -item[1][2], item[0]))
    rows = [
        (
            short(name, _TENSOR),
            kind,
            phase,
            f"{amount / 1e6:,.1f}",
            count(times),
            report.amount(cost),
            report.amount(exposed),
        )
        for (name, kind, phase, _), (amount, times, cost, exposed) in ranked[:MOST_MOVED]
    ]
    if rest := ranked[MOST_MOVED:]:
        sums = [sum(values[at] for _, values in rest) for at in (1, 2, 3)]
        last = (count(sums[0]), report.amount(sums[1]), report.amount(sums[2]))
        rows.append((several(len(rest), "other"), "", "", "", *last))
    amount = "MB each" if report.timed else "10^6 each"
    headers = ("tensor", "collective", "when", amount, "times", report.unit, "exposed")
    return Grid(headers, tuple(rows), left=(0, 1, 2), title="What moves in a step")


def baselines(report: Contents) -> list[Block]:
    """Return the table of this partition (marked) and the well-known strategies that fit, the cheapest first, and the
    names of those that do not.
    """
    own = report.partition

    def row(name: str, one: Partition, more: str) -> tuple[str, ...]:
        training = one.costs.training
        return name, report.amount(one.cost), more, gib(one.memory), str(training.turns), training.keep.value

    found = [(name, one) for name, one in report.compared.items() if one is not None]
    ranked = sorted(found, key=lambda item: item[1].cost)
    rows = [row("this partition", own, "")]
    rows += [row(name, one, signed(one.cost / own.cost - 1)) for name, one in ranked]
    headers = ("strategy", report.unit, "more", "GiB", "microbatches", "keeps")
    missing = ", ".join(name for name, one in report.compared.items() if one is None)
    note = f"{missing}: does not fit this mesh, batch and memory" if missing else ""
    title = "Well-known strategies on the same graph"
    return present(Grid(headers, tuple(rows), left=(0, 5), title=title, marked=0), note)


def explained(report: Contents, v: int) -> Iterator[Block]:
    """Yield the table of an operator's inputs and outputs, with the layouts of tensor and gradient, and that of the
    collectives on the edges at it and of its own, if any. v: its index in the network.
    """
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


@dataclass(frozen=True, slots=True)
class Staged:
    """The contents of a pipeline's report. ask: inputs of the whole pipeline. contents: of each stage."""

    subject: str
    job: str
    ask: Ask
    pipeline: Pipeline
    contents: tuple[Contents, ...]


def stage_blocks(staged: Staged) -> list[Block]:
    """Return the report of a pipeline: headline, table of stages, then for each group of equal stages its operators and
    parameters once, the legend, and notes if there are any.
    """
    shown: list[Block] = [_stages_headline(staged), _stages(staged)]
    like = staged.pipeline.like
    for number in dict.fromkeys(like):
        report = staged.contents[number]
        mine = [str(n + 1) for n, first in enumerate(like) if first == number]
        shown += [f"Stage{'s' * (len(mine) > 1)} {', '.join(mine)}", strategies(report), stored(report)]
    shown += legend(staged.contents[0])
    notes = "\n".join(f"Note: {note}" for note in staged.pipeline.program.notes)
    return [*shown, notes] if notes else shown


def _stages_headline(staged: Staged) -> str:
    """Return the head: program; mesh; numbers of operators and layers; step time, stages, microbatches, idle share."""
    pipeline, ask = staged.pipeline, staged.ask
    return "\n".join(
        (
            f"{staged.subject}, {staged.job}".rstrip(", "),
            f"mesh: {ask.mesh}",
            f"{several(len(pipeline.program.operators), 'operator')} in {several(len(pipeline.cuts) - 1, 'layer')}, "
            "between which it may be cut",
            "",
            f"{seconds(pipeline.step_s)} s a step in {several(len(pipeline.stages), 'stage')}, "
            f"{microbatches(pipeline.turns)}; {percent(pipeline.idle)} of it idle",
        )
    )


def _stages(staged: Staged) -> Grid:
    """Return the table of stages, numbered from 1: first and last operator, their number, GPUs, milliseconds of a
    microbatch and once a step, microbatches in flight, memory in GiB, and what is kept for the backward pass.
    """
    pipeline = staged.pipeline
    rows = []
    for number, stage in enumerate(pipeline.stages):
        operators = stage_operators(pipeline, number)
        span = f"{short(operators[0], _STAGE_NAME)} to {short(operators[-1], _STAGE_NAME)}"
        rows.append(
            (
                str(number + 1), span, count(len(operators)), count(stage.gpus), milliseconds(stage.turn_s),
                milliseconds(stage.once_s), count(stage.alive), gib(stage.memory), KEPT[stage.keep],
            )
        )  # fmt: skip
    headers = ("stage", "operators", "", "GPUs", "ms a microbatch", "ms once", "in flight", "GiB", "")
    return Grid(headers, tuple(rows), left=(1, 8), title="Stages", fixed=(3,))


def stage_operators(pipeline: Pipeline, number: int) -> list[str]:
    """Return the names of a stage's operators, in the program's order. number: of the stage, from 0."""
    return [pipeline.program.operators[index].name for index in pipeline.operators(number)]
