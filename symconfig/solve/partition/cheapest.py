"""The cheapest strategy that a framework can be told, under the costs by which a partition is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from symconfig.cost.partition.costs import Costs, Training
from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.graph.program.net import Net
from symconfig.solve.partition.degrees import Way
from symconfig.solve.partition.expressible import Expressible, expressible
from symconfig.solve.partition.frameworks import Framework, Step, runs
from symconfig.solve.partition.priced import Priced, sums
from symconfig.solve.partition.problem import Array
from symconfig.solve.partition.project import Difference, Projection, aligned, differences
from symconfig.solve.partition.reduce import Bools
from symconfig.solve.partition.rows import as_fixed
from symconfig.solve.partition.run import Ask, Case, Partition, costs_of

Steps = Callable[[Training], Step]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheapest(Priced):
    """A strategy that a framework can be told. axes: in the order in which its ranks have them, innermost first."""

    way: Way
    axes: tuple[Axis, ...]
    rows: Rows

    @property
    def framework(self) -> Framework:
        return Framework(self.name)


@dataclass(frozen=True, slots=True)
class Space:
    """All that frameworks can be told of a net on the axes. able: [ways] of each framework, which it runs."""

    expressible: Expressible
    axes: tuple[Axis, ...]
    able: Mapping[Framework, Bools]


def space(net: Net, axes: Sequence[Axis], step: Step, among: Sequence[Framework] = tuple(Framework)) -> Space:
    def wanted(ways: Sequence[Way]) -> Bools:
        return np.asarray(np.any([runs(framework, step, ways) for framework in among], axis=0))

    expressible_rows = expressible(net, axes, wanted)
    fits = np.all(
        [as_fixed(node, expressible_rows.rows[:, index], axes) for index, node in enumerate(net.nodes)], axis=0
    )
    return Space(
        expressible_rows,
        tuple(axes),
        {framework: fits & runs(framework, step, expressible_rows.ways) for framework in among},
    )


def cheapest(where: Space, costs: Costs, limit: float, gamma: float = float("inf")) -> list[Cheapest]:
    """Return, for each framework that can be told anything, the strategy that fits and costs least, or the leanest."""
    if not where.expressible.ways:
        return []
    cost, memory = sums(costs, where.expressible.rows, gamma)
    result = []
    for framework, able in where.able.items():
        at = _pick(cost, memory, able, limit)
        if at is not None:
            way, rows = where.expressible.ways[at], where.expressible.rows[at]
            order = tuple(where.axes[index] for index in where.expressible.orders[at])
            paid, held = float(cost[at]), float(memory[at])
            result.append(
                Cheapest(
                    name=framework,
                    training=costs.training,
                    cost=paid,
                    memory=held,
                    fits=held <= limit,
                    way=way,
                    rows=rows,
                    axes=order,
                )
            )
    return result


def _pick(cost: Array, memory: Array, able: Bools, limit: float) -> int | None:
    """Pick the first of equals: what is plainest."""
    able = able & np.isfinite(cost)
    fits = able & (memory <= limit)
    if not able.any():
        return None
    among, by = (fits, cost) if fits.any() else (able, memory)
    return int(np.argmin(np.where(among, by, np.inf)))


def of_all(
    every: Iterable[Case],
    ask: Ask,
    axes: Sequence[Axis],
    steps: Steps,
    gamma: float = float("inf"),
    among: Sequence[Framework] = tuple(Framework),
) -> list[Cheapest]:
    """Return the cheapest over ways of running the step."""
    best: dict[Framework, Cheapest] = {}
    last: tuple[Net, Space] | None = None
    for case in every:
        if last is None or last[0] is not case.net:
            last = case.net, space(case.net, axes, steps(case.training), among)
        for choice in cheapest(last[1], costs_of(case, ask, axes), ask.memory_limit, gamma):
            if choice.framework not in best or choice.standing < best[choice.framework].standing:
                best[choice.framework] = choice
    return [best[framework] for framework in among if framework in best]


@dataclass(frozen=True, slots=True)
class Expressed:
    """What a framework can be told instead of a partition, with the same microbatches and what is kept where anything
    fits with those. differences: of the partition from it; none where it is exactly this.
    """

    by: Cheapest
    differences: tuple[Difference, ...]

    @property
    def exact(self) -> bool:
        return not self.differences


def expressed(
    partition: Partition, projection: Projection, steps: Steps, every: Callable[[], Iterable[Case]]
) -> tuple[Expressed, ...]:
    """Return the partition itself for frameworks that can be told it, else their cheapest. projection: of its rows.
    every: all ways of running the step that were asked for.
    """
    ask, costs, step = partition.ask, partition.costs, steps(partition.costs.training)
    rows = np.array(partition.rows, dtype=np.int64)
    exact = [
        Cheapest(
            name=framework,
            training=costs.training,
            cost=partition.cost,
            memory=partition.memory,
            fits=True,
            way=projection.way,
            rows=rows,
            axes=projection.axes,
        )
        for framework in Framework
        if projection.exact and runs(framework, step, [projection.way])[0]
    ]
    left = [framework for framework in Framework if framework not in {choice.framework for choice in exact}]
    alike = []
    if left:
        where = space(costs.net, partition.axes, step, left)
        alike = [choice for choice in cheapest(where, costs, ask.memory_limit, partition.gamma) if choice.fits]
    left = [framework for framework in left if framework not in {choice.framework for choice in alike}]
    other = of_all(every(), ask, partition.axes, steps, partition.gamma, left) if left else []
    choice = {choice.framework: choice for choice in (*exact, *alike, *other)}
    return tuple(_compared(partition, rows, choice[framework]) for framework in Framework if framework in choice)


def _compared(partition: Partition, rows: Rows, by: Cheapest) -> Expressed:
    other = aligned(partition.net, partition.axes, by.rows, rows)
    return Expressed(by, tuple(differences(partition.net, partition.axes, rows, other)))
