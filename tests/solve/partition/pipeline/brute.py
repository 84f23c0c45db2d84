"""Every cut of a program into stages, on every choice of parts of a mesh: the oracle of the dynamic program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import permutations
from math import inf, prod

import numpy as np

from symconfig.cost.partition import rates
from symconfig.graph.operator import Operator
from symconfig.graph.program.fold import Parts
from symconfig.graph.program.program import Program
from symconfig.solve.partition.pipeline.stage import submeshes
from symconfig.solve.partition.problem import price
from symconfig.solve.partition.run import Ask, partition


def least_step_s(program: Program, ask: Ask, least: int, most: int) -> float:
    """Between any two operators; every stage by the tensor solver, anew for each number of microbatches in flight."""
    parts, meshes = Parts(program), submeshes(ask.mesh)
    turns, between = ask.turns[0], rates.between_stages(ask.mesh, ask.cluster)

    @cache
    def stage(start: int, stop: int, mesh: int, alive: int) -> tuple[float, float]:
        """Seconds of a microbatch, and of a step of the stage alone."""
        training = replace(ask.training, alive=alive)
        mine = replace(ask, mesh=meshes[mesh], training=training, between=between)
        found = partition(lambda turns: parts.program_of(start, stop), mine)
        if found is None:
            return inf, inf
        twice = replace(found.costs, training=replace(found.costs.training, turns=2 * turns))
        cost, _ = price(twice, np.array(found.rows, dtype=np.int64).reshape(len(found.rows), -1))
        tied = sum(prod(program.sizes[dim] for dim in one.tensor.dims) for one in parts.shared(start, stop))
        sent = float(between(4.0 * tied / meshes[mesh].gpus)) if tied else 0.0
        return (cost - found.cost) / turns, found.cost + sent

    def step_s(cuts: tuple[int, ...], taken: tuple[int, ...]) -> float:
        count = len(taken)
        every = [stage(cuts[n], cuts[n + 1], mesh, min(count - n, turns)) for n, mesh in enumerate(taken)]
        return sum(turn for turn, _ in every) + max(whole - turn for turn, whole in every)

    gpus = [mesh.gpus for mesh in meshes]
    return min(
        (
            step_s(cuts, taken)
            for number in range(least, most + 1)
            for cuts in _cuts(len(program.operators), number)
            for taken in _taken(gpus, number, gpus[-1])
        ),
        default=inf,
    )


def orders(program: Program) -> list[tuple[Operator, ...]]:
    """Every order in which the program's operators may run."""
    return [
        order
        for order in permutations(program.operators)
        if all(
            {use.name for use in op.inputs}.isdisjoint(use.name for later in order[n:] for use in later.outputs)
            for n, op in enumerate(order)
        )
    ]


def _cuts(operators: int, stages: int) -> Iterator[tuple[int, ...]]:
    from itertools import combinations

    for inner in combinations(range(1, operators), stages - 1):
        yield (0, *inner, operators)


def _taken(gpus: list[int], stages: int, left: int) -> Iterator[tuple[int, ...]]:
    if stages == 0:
        if left == 0:
            yield ()
        return
    for number, many in enumerate(gpus):
        if many <= left:
            yield from ((number, *rest) for rest in _taken(gpus, stages - 1, left - many))
