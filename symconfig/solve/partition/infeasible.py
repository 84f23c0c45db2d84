"""When no partition fits: the tensor that binds, and the smallest mesh that would hold it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from symconfig.cost.partition.floor import floor_bytes
from symconfig.descriptor.mesh import Axis, Mesh
from symconfig.errors import InfeasibleError, InputError
from symconfig.format import either, general
from symconfig.solve.partition.adaptive import Cutter
from symconfig.solve.partition.pinned import Pin
from symconfig.solve.partition.run import FEW, Ask, Case, Programs, cases, costs_of
from symconfig.units import GIB

_DOUBLINGS = 12
Grown = Callable[[int], Mesh | None]  # the mesh of so many times as many GPUs, or None where there is none


@dataclass(frozen=True, slots=True)
class Lightest:
    """The least-memory partition found over all cases. memory: bytes. bound: lower bound on the bytes of any."""

    case: Case
    axes: tuple[Axis, ...]
    rows: tuple[tuple[int, ...], ...]
    memory: float
    bound: float


def infeasible(programs: Programs, ask: Ask, grown: Grown) -> InfeasibleError:
    """Return the error for a program that has no feasible partition, with the largest tensor and a hint.

    If no partition satisfies the pins, it is the error of `excluded`. If the least-memory partition does fit, the
    solver missed it and the hint is another solver or a longer time limit. Otherwise the hint is the nearest larger
    mesh on which a partition was found to fit. grown: returns a mesh of n times as many GPUs, or None.
    """
    best = lightest(programs, ask)
    if not np.isfinite(best.memory):
        return excluded(programs, ask)
    if best.memory <= ask.memory_limit:
        turns, keep = best.case.training.turns, best.case.training.keep
        what = f"the {ask.solver} solver found no partition that fits, though one holds {_size(best.memory)}"
        need = f"{_size(ask.memory_limit)}, with {_microbatches((turns,))} and {keep} kept"
        return InfeasibleError(what, need=need, hint="--solver auto, or a longer --timeout")
    name, size = _largest(best, ask)
    what = (
        f"nothing fits in memory: with {_microbatches(ask.turns)} the least-memory partition that was found holds "
        f"{_size(best.memory)} on a GPU (none can hold less than {_size(best.bound)}), of {_size(ask.memory_limit)}; "
        f"most of it is {name} ({_size(size)})"
    )
    return InfeasibleError(what, hint=_nearest(best.case, ask, grown))


def excluded(programs: Programs, ask: Ask) -> InfeasibleError:
    """Return the error for pins that exclude every partition: it names a smallest subset that still does.

    A pin is dropped from the list if the others exclude every partition without it. Only the first number of
    microbatches is tried.
    """

    def able(pins: tuple[Pin, ...]) -> bool:
        on = replace(ask, pins=pins, turns=ask.turns[:1])
        return lightest(programs, on).memory < np.inf

    pins = ask.pins
    for pin in ask.pins:  # without those that do no harm
        fewer = tuple(other for other in pins if other != pin)
        pins = pins if able(fewer) else fewer
    what = "no partition was found that keeps to " + " and ".join(pin.text for pin in pins)
    return InfeasibleError(what, field="pin", need="pins that can hold together")


def lightest(programs: Programs, ask: Ask) -> Lightest:
    """Return the least-memory partition over all numbers of microbatches and all `keeps`.

    Cases are solved in ascending order of their lower bound in bytes (with equal bounds, more microbatches first) until
    a bound reaches the best memory found. The result's bound is the lower one of its memory and all cases' bounds. Its
    memory is infinite if no partition satisfies the pins.
    """
    floors = [(floor_bytes(costs_of(case, ask, ()), ask.mesh.gpus), case) for case in cases(programs, ask)]
    best: Lightest | None = None
    for floor, case in sorted(floors, key=lambda one: (one[0], -one[1].training.turns)):
        if best is not None and floor >= best.memory:
            break
        other = _lightest(case, ask)
        best = other if best is None or other.memory < best.memory else best
    assert best is not None
    return replace(best, bound=min(best.memory, *(floor for floor, _ in floors)))


def _lightest(case: Case, ask: Ask) -> Lightest:
    """Return the case's least-memory partition that the adaptive solver finds, memory before cost.

    The price is on bytes; with the objective symtensor also on the paper's Cost_mem, and the leaner result is taken.
    Memory is infinite if no partition satisfies the pins.
    """
    axes = ask.mesh.shapes(FEW)[0]
    costs = costs_of(case, ask, axes)
    orders = tuple(reversed(range(len(axes)))), tuple(range(len(axes)))
    bytes_first = Cutter(costs, axes, None, by_bytes=True)
    cutters = (bytes_first,) if costs.timed else (bytes_first, replace(bytes_first, by_bytes=False))
    tried = []
    for cutter in cutters:
        for order in orders:
            free = cutter.partitioned(0.0, order)
            tried.append(free)
            if np.isfinite(free.cost):
                tried += [cutter.leanest(order, free, lean) for lean in (False, True)]
    leanest = min(tried, key=lambda one: one.memory)
    bound = floor_bytes(costs, ask.mesh.gpus)
    return Lightest(case, axes, leanest.rows, leanest.memory, min(bound, leanest.memory))


def _largest(best: Lightest, ask: Ask) -> tuple[str, float]:
    """Return a description of the largest memory consumer in the partition and its bytes.

    Weights count with gradient and optimizer state, and tensors of the same name in all layers are summed. The largest
    transient of any node is one of the consumers compared.
    """
    costs = costs_of(best.case, ask, best.axes)
    every = [np.array([row], dtype=np.int64) for row in best.rows]
    held: dict[str, float] = {}

    def add(name: str, amount: float) -> None:
        held[general(name)] = held.get(general(name), 0.0) + amount

    transient = [0.0] * len(every)
    for index, (node, row) in enumerate(zip(costs.net.nodes, every, strict=True)):
        alone = costs.node(index, row)
        transient[index] = float(alone.transient[0])
        if node.parameter is not None:
            add(f"weight {node.name} with its gradient and optimizer state", float(alone.memory[0]))
        elif node.operator is not None:
            add(f"tensor {node.operator.outputs[0].name}", float(alone.memory[0]))
    for index, link in enumerate(costs.net.links):
        amount = float(costs.link(index, every[link.producer], every[link.consumer]).memory[0, 0])
        add(f"tensor {costs.net.nodes[link.producer].ports[link.given].tensor.name}", amount)
    widest = int(np.argmax(transient))
    add(f"what {costs.net.nodes[widest].name} reads and writes while it runs", transient[widest])
    return max(held.items(), key=lambda item: (item[1], item[0]))


def _nearest(case: Case, ask: Ask, grown: Grown) -> str:
    """Return a hint with a larger number of GPUs on which the case was found to fit.

    GPU counts are doubled up to 2^12 times; then multiples between the last two powers are tried in steps of an eighth.
    If none fits, the hint is a smaller batch or more memory.
    """
    tried: dict[int, float] = {}

    def fits(times: int) -> bool:
        tried[times] = _least_bytes(case, ask, grown, times)
        return tried[times] <= ask.memory_limit

    many = next((2**power for power in range(1, _DOUBLINGS + 1) if fits(2**power)), 0)
    if not many:
        return "a smaller batch or sequence, or more memory: no larger mesh was found to hold it"
    step = max(many // 8, 1)
    times = next((times for times in range(many // 2 + step, many, step) if fits(times)), many)
    return f"{times * ask.mesh.gpus:,} GPUs, on which {_size(tried[times])} would be held"


def _least_bytes(case: Case, ask: Ask, grown: Grown, times: int) -> float:
    """Return the least bytes per GPU found on a mesh of `times` as many GPUs.

    Infinite if there is no such mesh or if the lower bound already exceeds the memory limit.
    """
    try:
        mesh = grown(times)
    except InputError:
        return np.inf
    if mesh is None:
        return np.inf
    on = replace(ask, mesh=mesh)
    if floor_bytes(costs_of(case, on, ()), mesh.gpus) > on.memory_limit:
        return np.inf
    return _lightest(case, on).memory


def _microbatches(turns: Sequence[int]) -> str:
    return f"{either(turns)} microbatch" + ("es" if turns[-1] > 1 else "")


def _size(amount: float) -> str:
    if amount < 0.1 * GIB:
        return f"{amount * 1024 / GIB:,.2f} MiB"
    return f"{amount / GIB:,.2f} GiB" if amount < 100 * GIB else f"{amount / GIB:,.0f} GiB"
