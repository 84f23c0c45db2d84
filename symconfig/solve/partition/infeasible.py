"""When no partition fits: the tensor that binds, and the smallest mesh that would hold it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from symconfig.cost.partition.floor import floor_bytes
from symconfig.descriptor.mesh import Axis, Mesh
from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.solve.partition.adaptive import Cutter
from symconfig.solve.partition.assemble import assemble
from symconfig.solve.partition.least import least_memory
from symconfig.solve.partition.rows import spaces
from symconfig.solve.partition.run import FEW, Ask, Case, Programs, cases, costs_of
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
    if found.memory <= ask.memory_limit:
        turns, keep = found.case.training.turns, found.case.training.keep
        what = f"the {ask.solver} solver found no partition that fits, though one holds {_gib(found.memory)} GiB"
        need = f"{_gib(ask.memory_limit)} GiB, with {turns} microbatches and {keep} kept"
        return InfeasibleError(Problem(what, need=need, hint="--solver auto, or a longer --timeout"))
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
    """With most microbatches and what stays for the backward least."""
    case = _leanest(programs, ask)
    found, axes = _found(case, ask), ask.mesh.axes()
    if len(axes) > FEW:
        return found
    costs = costs_of(case, ask, axes)
    rows = spaces(costs, axes)
    assert rows is not None
    problem = assemble(costs, rows, float("inf"))
    least = least_memory(problem, None, _PROOF_S)
    bound = max(found.bound, least.bound)
    if least.choice is not None and problem.memory(least.choice) < found.memory:
        chosen = tuple(tuple(some[c].tolist()) for some, c in zip(rows, least.choice, strict=True))
        found = replace(found, rows=chosen, memory=problem.memory(least.choice))
    return replace(found, bound=min(bound, found.memory))


def _leanest(programs: Programs, ask: Ask) -> Case:
    every = list(cases(programs, replace(ask, turns=ask.turns[-1:])))
    return min(every, key=lambda case: floor_bytes(costs_of(case, ask, ()), ask.mesh.gpus))


def _found(case: Case, ask: Ask) -> Lightest:
    """By the adaptive solver, where nothing but memory counts."""
    axes = ask.mesh.axes()
    costs = costs_of(case, ask, axes)
    cutter = Cutter(costs, axes, ask.gamma)
    inward, outward = tuple(reversed(range(len(axes)))), tuple(range(len(axes)))
    found = min((cutter.partitioned(_NOTHING_ELSE, order) for order in (inward, outward)), key=lambda one: one.memory)
    bound = floor_bytes(costs, ask.mesh.gpus)
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
    tried: dict[int, float] = {}

    def fits(times: int) -> bool:
        tried[times] = _held(programs, ask, grown, times)
        return tried[times] <= ask.memory_limit

    many = next((2**power for power in range(1, _DOUBLINGS + 1) if fits(2**power)), 0)
    if not many:
        return "a smaller batch or sequence, or more memory: no larger mesh was found to hold it"
    step = max(many // 8, 1)
    times = next((times for times in range(many // 2 + step, many, step) if fits(times)), many)
    return f"{times * ask.mesh.gpus:,} GPUs, on which {_gib(tried[times])} GiB would be held"


def _held(programs: Programs, ask: Ask, grown: Grown, times: int) -> float:
    """Bytes that were found to do on so many times as many GPUs; infinite where there are none, or too few."""
    try:
        mesh = grown(times)
    except InputError:
        return np.inf
    if mesh is None:
        return np.inf
    on = replace(ask, mesh=mesh)
    case = _leanest(programs, on)
    if floor_bytes(costs_of(case, on, ()), mesh.gpus) > on.memory_limit:
        return np.inf
    return _found(case, on).memory


def _gib(amount: float) -> str:
    return f"{amount / GIB:,.2f}" if amount < 100 * GIB else f"{amount / GIB:,.0f}"
