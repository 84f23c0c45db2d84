"""When no partition fits: the tensor that binds, and the smallest mesh that would hold it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from symconfig.cost.partition.floor import floor_bytes
from symconfig.descriptor.mesh import Axis, Mesh
from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.solve.partition.adaptive import Cutter
from symconfig.solve.partition.assemble import assemble
from symconfig.solve.partition.least import least_memory
from symconfig.solve.partition.rows import spaces
from symconfig.solve.partition.run import FEW, Ask, Case, Programs, all_cases, costs_of
from symconfig.units import GIB

_NOTHING_ELSE = 1e30  # a price of memory at which nothing else counts
_PROOF_S = 2.0
_DOUBLINGS = 12
Grown = Callable[[int], Mesh | None]  # the mesh of so many times as many GPUs, or None where there is none


@dataclass(frozen=True, slots=True)
class Lightest:
    """Of all ways of running a step the one that was found to hold least. bound: none holds less; memory, where that
    is proved."""

    case: Case
    axes: tuple[Axis, ...]
    rows: tuple[tuple[int, ...], ...]
    memory: float
    bound: float


def infeasible(programs: Programs, ask: Ask, grown: Grown) -> InfeasibleError:
    """Names what binds and the nearest mesh that would do."""
    found = lightest(programs, ask)
    name, size = _largest(found, ask)
    proved = found.bound >= found.memory * (1 - 1e-9)
    least = "no partition holds less than" if proved else "the leanest partition that was found holds"
    below = "" if proved else f" (none can hold less than {_gib(found.bound)} GiB)"
    what = (
        f"nothing fits in memory: {least} {_gib(found.memory)} GiB on a GPU{below}, of {_gib(ask.memory_limit)} GiB; "
        f"most of it is {name} ({_gib(size)} GiB)"
    )
    return InfeasibleError(Problem(what, hint=_nearest(programs, ask, grown)))


def lightest(programs: Programs, ask: Ask) -> Lightest:
    """Over everything that was asked for."""
    return min((_lightest(case, ask) for case in _leanest(programs, ask)), key=lambda found: found.memory)


def _leanest(programs: Programs, ask: Ask) -> Iterator[Case]:
    """With most microbatches; what stays for the backward least."""
    every = list(all_cases(programs, replace(ask, turns=ask.turns[-1:])))
    floors = [floor_bytes(costs_of(case, ask, ()), ask.mesh.gpus) for case in every]
    yield every[int(np.argmin(floors))]


def _lightest(case: Case, ask: Ask) -> Lightest:
    axes = ask.mesh.axes()
    costs = costs_of(case, ask, axes)
    cutter = Cutter(costs, axes, ask.gamma)
    inward, outward = tuple(reversed(range(len(axes)))), tuple(range(len(axes)))
    found = min((cutter.partitioned(_NOTHING_ELSE, order) for order in (inward, outward)), key=lambda one: one.memory)
    bound = floor_bytes(costs, ask.mesh.gpus)
    if len(axes) <= FEW and (rows := spaces(costs, axes)) is not None:
        problem = assemble(costs, rows, float("inf"))
        least = least_memory(problem, None, _PROOF_S)
        bound = max(bound, least.bound)
        if least.choice is not None:
            chosen = tuple(tuple(some[c].tolist()) for some, c in zip(rows, least.choice, strict=True))
            peak = problem.memory(least.choice)
            if peak < found.memory:
                return Lightest(case, axes, chosen, peak, min(bound, peak))
    return Lightest(case, axes, found.rows, found.memory, min(bound, found.memory))


def _largest(found: Lightest, ask: Ask) -> tuple[str, float]:
    """The tensor with the largest share of what is held, all layers' of it together, and its bytes."""
    costs = costs_of(found.case, ask, found.axes)
    every = [np.array([row], dtype=np.int64) for row in found.rows]
    held: dict[str, float] = {}

    def add(name: str, amount: float) -> None:
        general = re.sub(r"\d+", "*", name)
        held[general] = held.get(general, 0.0) + amount

    transient = [0.0] * len(every)
    for index, (node, row) in enumerate(zip(costs.net.nodes, every, strict=True)):
        alone = costs.node(index, row)
        transient[index] = float(alone.transient[0])
        if node.parameter is not None:
            add(f"weight {node.name} with its gradient and optimizer state", float(alone.memory[0]))
        elif node.operator is not None:
            add(f"tensor {node.operator.outputs[0].tensor}", float(alone.memory[0]))
    for index, link in enumerate(costs.net.links):
        amount = float(costs.link(index, every[link.producer], every[link.consumer]).memory[0, 0])
        add(f"tensor {costs.net.nodes[link.producer].ports[link.given].tensor.name}", amount)
    widest = int(np.argmax(transient))
    add(f"what {costs.net.nodes[widest].name} reads and writes while it runs", transient[widest])
    return max(held.items(), key=lambda item: (item[1], item[0]))


def _nearest(programs: Programs, ask: Ask, grown: Grown) -> str:
    """The fewest GPUs, in steps of doubled and half-way counts, on which the lightest partition fits."""
    few, many = 1, 0
    for power in range(1, _DOUBLINGS + 1):
        if _fits(programs, ask, grown, 2**power):
            few, many = 2 ** (power - 1), 2**power
            break
    if not many:
        return "a smaller batch or sequence, or more memory: no larger mesh was found to hold it"
    steps: Sequence[int] = range(few + max(few // 4, 1), many, max(few // 4, 1))
    times = next((times for times in steps if _fits(programs, ask, grown, times)), many)
    return f"{times * ask.mesh.gpus:,} GPUs, on which {_held(programs, ask, grown, times)} GiB would be held"


def _on(ask: Ask, grown: Grown, times: int) -> Ask | None:
    try:
        mesh = grown(times)
    except InputError:
        return None
    return replace(ask, mesh=mesh) if mesh is not None else None


def _fits(programs: Programs, ask: Ask, grown: Grown, times: int) -> bool:
    on = _on(ask, grown, times)
    if on is None:
        return False
    case = next(_leanest(programs, on))
    if floor_bytes(costs_of(case, on, ()), on.mesh.gpus) > on.memory_limit:
        return False
    return lightest(programs, on).memory <= on.memory_limit


def _held(programs: Programs, ask: Ask, grown: Grown, times: int) -> str:
    on = _on(ask, grown, times)
    assert on is not None
    return _gib(lightest(programs, on).memory)


def _gib(amount: float) -> str:
    return f"{amount / GIB:,.2f}" if amount < 100 * GIB else f"{amount / GIB:,.0f}"
