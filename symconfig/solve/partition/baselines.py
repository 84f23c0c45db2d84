"""Strategies with names, as rows for every node of a net: data parallel and ZeRO, Megatron's, GShard's, 2-D products,
spatial, Ulysses, context parallel, and one at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from symconfig.cost.partition.costs import Costs, Training
from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.graph.operator import Work
from symconfig.graph.program.net import Net
from symconfig.solve.partition.degrees import Way, lacking, laid, settled, way
from symconfig.solve.partition.follow import Arrival, Settling, matching
from symconfig.solve.partition.problem import price
from symconfig.solve.partition.roles import Roles, splitting
from symconfig.solve.partition.run import Ask, Case, costs_of


@dataclass(frozen=True, slots=True)
class Baseline:
    """rows: [nodes, axes], or None where the program or the mesh does not have what the strategy splits: `why`."""

    name: str
    rows: Rows | None
    why: str = ""
    way: Way | None = None


def baseline(net: Net, axes: Sequence[Axis], name: str, chosen: Way | None = None) -> Baseline:
    """Return the rows of a named strategy, or rows None and the reason if program or mesh does not allow it.

    axes: innermost first. chosen: degrees to use; None: the largest that work.

    data, zero1, zero2, zero3: the batch over all axes. megatron-tp, megatron-tp-sp: tensor parallel over the axes of
    the innermost level, the batch over the others. gshard: experts over as many axes as divide them, the batch over
    all. ulysses: the sequence over as many axes as divide the heads, the batch over the others. context: the sequence
    over all axes. matmul-2d: the inner half of the axes for the output width of products, the outer half for a weight's
    other dim. spatial: the dims that a window slides over, then the batch. random: any valid split, with seed 0. Raises
    KeyError for another name.
    """
    if name in _OTHERS:
        return _OTHERS[name](net, axes)
    tried = (_of_degrees(net, axes, one) for one in ([chosen] if chosen else _defaults(name, axes)))
    first = next(tried)
    best = first if first.rows is not None else next((other for other in tried if other.rows is not None), first)
    return replace(best, name=name)


def _of_degrees(net: Net, axes: Sequence[Axis], chosen: Way) -> Baseline:
    """Return the baseline with these degrees, its name empty; rows None and `why` if the roles cannot be had."""
    along = laid(axes, chosen)
    if isinstance(along, str):
        return Baseline("", None, along, chosen)
    rows = settled(net, axes, along, chosen.zero)
    why = lacking(net, axes, along, rows)
    return Baseline("", None if why else rows, why, chosen)


def _defaults(name: str, axes: Sequence[Axis]) -> Iterator[Way]:
    """Yield degrees to try, the most parallel first; the parallel degree takes inner axes, the batch the rest.

    Tensor parallelism is limited to the innermost level.
    """
    make, ranks = _DEFAULTS[name], prod(axis.size for axis in axes)
    level = sum(axis.level == axes[0].level for axis in axes)
    most = {"megatron-tp": level, "megatron-tp-sp": level, "gshard": len(axes), "ulysses": len(axes)}.get(name, 0)
    for inner in range(most, 0, -1):
        yield make(prod(axis.size for axis in axes[:inner]), ranks)
    if not most:
        yield make(1, ranks)


# Of the ranks of some inner axes, and of all.
_DEFAULTS: Mapping[str, Callable[[int, int], Way]] = {
    "data": lambda inner, ranks: way(dp=ranks),
    "zero1": lambda inner, ranks: way(dp=ranks, zero=1),
    "zero2": lambda inner, ranks: way(dp=ranks, zero=2),
    "zero3": lambda inner, ranks: way(dp=ranks, zero=3),
    "megatron-tp": lambda inner, ranks: way(inner, dp=ranks // inner),
    "megatron-tp-sp": lambda inner, ranks: way(inner, dp=ranks // inner, sequence_parallel=True),
    "gshard": lambda inner, ranks: way(dp=ranks, ep=inner),
    "ulysses": lambda inner, ranks: way(cp=inner, dp=ranks // inner, cp_comm="a2a"),
    "context": lambda inner, ranks: way(cp=ranks, cp_comm="all_gather"),
}


def _matmul_2d(net: Net, axes: Sequence[Axis]) -> Baseline:
    """Return the baseline that splits both dims of every weight, each over its own half of the axes.

    What a product gives along a dim is thus what the next one contracts. Operators with neither dim split the batch,
    then the sequence, else nothing. rows None if the program has no product with a weight.
    """
    colours = _colours(net)
    if not colours:
        return Baseline("matmul-2d", None, "the program has no product with a weight")
    roles, making, inner = Roles(net), Settling(net, axes), (len(axes) + 1) // 2
    for number in range(len(axes)):
        mine = frozenset(dim for dim, colour in colours.items() if colour == (number >= inner))

        def wish(index: int, arrivals: Sequence[Arrival], mine: frozenset[str] = mine) -> Iterator[int]:
            node = net.nodes[index]
            for loops in (mine, net.program.batch, roles.sequence):
                yield from splitting(node, loops)

        making.axis(number, wish, lambda index: 0)
    return Baseline("matmul-2d", making.rows)


def _colours(net: Net) -> dict[str, bool]:
    """Return one of two colours per dim of the products' weights; the two dims of a weight differ where possible.

    Greedy in program order; dims of other operators have none.
    """
    weights = {parameter.tensor.name for parameter in net.program.parameters}
    colours: dict[str, bool] = {}
    for op in net.program.operators:
        weight = next((x for x in op.inputs if x.name in weights), None)
        if op.work is not Work.MATMUL or weight is None:
            continue
        moving = {loop for x in op.inputs if x.name not in weights for loop in x.loops}
        summed = [loop for loop in weight.loops if loop in op.contracted and loop in moving]
        given = [loop for loop in weight.loops if loop not in op.contracted and loop not in moving]
        if summed and given:
            first = colours.setdefault(summed[0], not colours.get(given[0], False))
            colours.setdefault(given[0], not first)
    return colours


def _spatial(net: Net, axes: Sequence[Axis]) -> Baseline:
    """Return the baseline that gives each axis to the window's dim with most rows per part left, else to the batch.

    rows None if no operator has a sliding window.
    """
    if not any(split.halo for op in net.program.operators for split in op.splits):
        return Baseline("spatial", None, "no operator has a window that slides over a dim, as a convolution has")
    windows = {op_split.loops[0] for op in net.program.operators for op_split in op.splits if op_split.halo}
    making = Settling(net, axes)
    for number in range(len(axes)):

        def wish(index: int, arrivals: Sequence[Arrival]) -> Iterator[int]:
            node = net.nodes[index]
            able = [o for o in splitting(node, frozenset(windows)) if node.options[o].parts]
            led = matching(node, arrivals)
            left = {o: node.options[o].parts / making.cut(index, o) for o in able}
            yield from sorted(able, key=lambda o: (-left[o], o))
            yield from led
            yield from splitting(node, net.program.batch)

        making.axis(number, wish, lambda index: 0)
    return Baseline("spatial", making.rows)


def _random(net: Net, axes: Sequence[Axis]) -> Baseline:
    return Baseline("random", random_rows(net, axes, 0))


def random_rows(net: Net, axes: Sequence[Axis], seed: int, flat: bool = True) -> Rows:
    """Return a random strategy, [nodes, axes], with options that fit; deterministic for a seed.

    A parameter that is read in parts along an axis is split as it is read; without `flat`, every parameter is.
    """
    making, source = Settling(net, axes), np.random.default_rng(seed)
    order = sorted(range(len(net.nodes)), key=lambda index: net.nodes[index].parameter is not None)
    for number in range(len(axes)):
        for index in order:
            options = net.nodes[index].options
            split = net.nodes[index].parameter is not None and making.read_in_parts(index, number)
            able = [option for option in range(len(options)) if making.fits(index, option, number)]
            if split or (net.nodes[index].parameter is not None and not flat):
                able = [making.as_read(index, number, 0)]
            making.take(index, int(source.choice(able)), number)
    return making.rows


_OTHERS: Mapping[str, Callable[[Net, Sequence[Axis]], Baseline]] = {
    "matmul-2d": _matmul_2d,
    "spatial": _spatial,
    "random": _random,
}
NAMES = (*_DEFAULTS, *_OTHERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A strategy with its costs under a way of running the step.

    cost: of the objective, infinite where the strategy
    cannot be had, `why`, or where the costs rule it out. memory: bytes at the peak. fits: within the limit. rows:
    [nodes, axes] on the axes as they were given.
    """

    name: str
    training: Training = field(default_factory=Training)
    cost: float = float("inf")
    memory: float = float("inf")
    fits: bool = False
    why: str = ""
    way: Way | None = None
    rows: Rows | None = None

    @property
    def standing(self) -> tuple[bool, float]:
        """Return a sort key: strategies that fit first, by cost; then the others, by memory."""
        return (not self.fits, self.cost if self.fits else self.memory)


def of_baseline(costs: Costs, strategy: Baseline, gamma: float, limit: float = float("inf")) -> Priced:
    """Return a strategy with its cost, memory and whether it fits. limit: bytes that a GPU may hold.

    Costs and memory stay infinite if it has no rows; `why` is set if it cannot be had or costs infinity.
    """
    name, way = strategy.name, strategy.way
    if strategy.rows is None:
        return Priced(name=name, training=costs.training, why=strategy.why, way=way)
    cost, memory = price(costs, strategy.rows, gamma)
    why = "" if np.isfinite(cost) else "it keeps weights in smaller parts than they are used in, which is ruled out"
    fits = bool(memory <= limit and np.isfinite(cost))
    return Priced(
        name=name, training=costs.training, cost=cost, memory=memory, fits=fits, why=why, way=way, rows=strategy.rows
    )


def compared(cases: Sequence[Case], ask: Ask, axes: Sequence[Axis], gamma: float = float("inf")) -> list[Priced]:
    """Return every named baseline in its best case: the cheapest that fits, else the one with least memory."""
    return [_best(cases, ask, axes, gamma, name) for name in NAMES]


def _best(cases: Sequence[Case], ask: Ask, axes: Sequence[Axis], gamma: float, name: str) -> Priced:
    """Return the named baseline in the best of the cases; without rows in any, the first case's reason."""
    made = [(case, baseline(case.net, axes, name)) for case in cases]
    tried = [
        of_baseline(costs_of(case, ask, axes), one, gamma, ask.memory_limit)
        for case, one in made
        if one.rows is not None
    ]
    return min(tried, key=lambda one: one.standing) if tried else Priced(name=name, why=made[0][1].why if made else "")
