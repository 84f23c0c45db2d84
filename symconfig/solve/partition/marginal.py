"""The exact least sum of a priced space, and that with each choice, by eliminating node after node.

Time and memory go with the largest table: choices ^ (treewidth + 1). Chains with residual links have a treewidth of 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from symconfig.solve.partition.bound import Priced
from symconfig.solve.partition.problem import Array
from symconfig.solve.partition.reduce import Space


@dataclass(frozen=True, slots=True)
class Step:
    """Node v goes; its table is over v and the scope, the nodes that stand beside it by then."""

    v: int
    scope: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Factor:
    """A table with an axis for each node of its scope. source: the step that made it, or -1."""

    scope: tuple[int, ...]
    table: Array
    source: int = -1


@dataclass(frozen=True, slots=True)
class Eliminated:
    """least: of the sum; choice: one assignment that has it. parts: for each step what its table is the sum of."""

    least: float
    choice: tuple[int, ...]
    steps: tuple[Step, ...]
    parts: tuple[tuple[Factor, ...], ...]
    made: tuple[Factor, ...]


def plan(space: Space) -> tuple[tuple[Step, ...], int]:
    """Order all nodes, each time the one with the smallest table, and count the entries of all tables."""
    sizes, neighbours = space.sizes, [{w for _, w in around} for around in space.around]
    left, steps, entries = set(range(len(sizes))), [], 0
    while left:
        v = min(left, key=lambda node: (sizes[node] * prod(sizes[w] for w in neighbours[node]), node))
        scope = tuple(sorted(neighbours[v]))
        steps.append(Step(v, scope))
        entries += sizes[v] * prod(sizes[w] for w in scope)
        left.remove(v)
        for w in scope:
            neighbours[w] |= neighbours[v]
            neighbours[w] -= {v, w}
    return tuple(steps), entries


def eliminated(of: Priced, steps: tuple[Step, ...]) -> Eliminated:
    waiting = [Factor((v,), unary) for v, unary in enumerate(of.unary)]
    waiting += [Factor((pair.u, pair.v), pair.full(of.table(p))) for p, pair in enumerate(of.space.pairs)]
    parts, made, least = [], [], 0.0
    for number, step in enumerate(steps):
        mine = tuple(factor for factor in waiting if step.v in factor.scope)
        waiting = [factor for factor in waiting if step.v not in factor.scope]
        table = _sum(mine, (step.v, *step.scope)).min(axis=0)
        result = Factor(step.scope, table, number)
        if step.scope:
            waiting.append(result)
        else:
            least += float(table)
        parts.append(mine)
        made.append(result)
    return Eliminated(least, _traced(steps, parts, len(of.unary)), steps, tuple(parts), tuple(made))


def marginals(of: Eliminated) -> tuple[Array, ...]:
    """Return, for each node, the least sum with each of its choices."""
    least = {of.steps[n].v: belief.min(axis=tuple(range(1, belief.ndim))) for n, belief in beliefs(of)}
    return tuple(least[v] for v in range(len(of.steps)))


def beliefs(of: Eliminated) -> Iterator[tuple[int, Array]]:
    """Yield of each step, last to first, the least sum with each combination of its node and its scope."""
    above: dict[int, Array] = {}  # step -> the least of all that its table lacks, over its scope
    for number in range(len(of.steps) - 1, -1, -1):
        step, mine = of.steps[number], of.parts[number]
        nodes = (step.v, *step.scope)
        rest = above.pop(number) if step.scope else np.asarray(of.least - float(of.made[number].table))
        belief = _sum((*mine, Factor(step.scope, rest)), nodes)
        for factor in mine:
            if factor.source >= 0:
                there = belief.min(axis=tuple(axis for axis, node in enumerate(nodes) if node not in factor.scope))
                order = tuple(node for node in nodes if node in factor.scope)
                here = _axes(factor, order)
                lacking = np.where(np.isfinite(here), there - np.where(np.isfinite(here), here, 0.0), np.inf)
                above[factor.source] = lacking.transpose([order.index(node) for node in factor.scope])
        yield number, belief


def _traced(steps: Sequence[Step], parts: Sequence[tuple[Factor, ...]], count: int) -> tuple[int, ...]:
    choice = [0] * count
    for step, mine in zip(reversed(steps), reversed(parts), strict=True):
        score = sum(f.table[tuple(slice(None) if n == step.v else choice[n] for n in f.scope)] for f in mine)
        choice[step.v] = int(np.argmin(score))
    return tuple(choice)


def _sum(factors: Sequence[Factor], nodes: tuple[int, ...]) -> Array:
    """Sum over the nodes, in their order. Small tables first, so that few operations are as large as the sum."""
    total: Array = np.zeros((1,) * len(nodes))
    for factor in sorted(factors, key=lambda f: f.table.size):
        total = total + _axes(factor, nodes)
    return total


def _axes(factor: Factor, nodes: tuple[int, ...]) -> Array:
    """Return the table with its axes in the order of the nodes, and an axis of one for each node that it lacks."""
    order = [factor.scope.index(node) for node in nodes if node in factor.scope]
    table = factor.table.transpose(order)
    sizes = iter(table.shape)
    return table.reshape(tuple(next(sizes) if node in factor.scope else 1 for node in nodes))
