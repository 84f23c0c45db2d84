"""When no partition fits: the tensor that binds, and the smallest mesh that would hold it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from symconfig.cost.partition.floor import floor_bytes
from symconfig.descriptor.mesh import Axis, Mesh
from symconfig.errors import InfeasibleError, InputError
from symconfig.format import either, general
from symconfig.solve.cbc import spent_s
from symconfig.solve.partition.adaptive import Cutter, Division
from symconfig.solve.partition.assemble import assemble
from symconfig.solve.partition.exact import best
from symconfig.solve.partition.pinned import Pin
from symconfig.solve.partition.price import Known, opened
from symconfig.solve.partition.problem import Array, Problem
from symconfig.solve.partition.reduce import Space, restrict, space
from symconfig.solve.partition.rows import spaces
from symconfig.solve.partition.run import FEW, Ask, Case, Programs, cases, costs_of
from symconfig.units import GIB

_PROOF_S = 2.0
_DOUBLINGS = 12
Grown = Callable[[int], Mesh | None]  # the mesh of so many times as many GPUs, or None where there is none


@dataclass(frozen=True, slots=True)
class Lightest:
    """The way of running a step that holds least of all that were tried. bound: none holds less; memory, where that is
    proved.
    """

    case: Case
    axes: tuple[Axis, ...]
    rows: tuple[tuple[int, ...], ...]
    memory: float
    bound: float


def infeasible(programs: Programs, ask: Ask, grown: Grown) -> InfeasibleError:
    """Return an error that names what binds and the nearest mesh that would do."""
    best = lightest(programs, ask)
    if not np.isfinite(best.memory):
        return excluded(programs, ask)
    if best.memory <= ask.memory_limit:
        turns, keep = best.case.training.turns, best.case.training.keep
        what = f"the {ask.solver} solver found no partition that fits, though one holds {_size(best.memory)}"
        need = f"{_size(ask.memory_limit)}, with {_microbatches((turns,))} and {keep} kept"
        return InfeasibleError(what, need=need, hint="--solver auto, or a longer --timeout")
    name, size = _largest(best, ask)
    proved = best.bound >= best.memory * (1 - 1e-9)
    least = "no partition holds less than" if proved else "the leanest partition that was found holds"
    below = "" if proved else f" (none can hold less than {_size(best.bound)})"
    what = (
        f"nothing fits in memory: with {_microbatches(ask.turns)} {least} {_size(best.memory)} on a GPU{below}, of "
        f"{_size(ask.memory_limit)}; most of it is {name} ({_size(size)})"
    )
    return InfeasibleError(what, hint=_nearest(best.case, ask, grown))


def excluded(programs: Programs, ask: Ask) -> InfeasibleError:
    """Name the pins that no partition keeps to at once, and one without which there are some."""

    def able(pins: tuple[Pin, ...]) -> bool:
        on = replace(ask, pins=pins, turns=ask.turns[:1])
        return any(_lightest(case, on).memory < np.inf for case in cases(programs, on)) or (
            lightest(programs, on).memory < np.inf
        )

    pins = ask.pins
    for pin in ask.pins:  # without those that do no harm
        fewer = tuple(other for other in pins if other != pin)
        pins = pins if able(fewer) else fewer
    what = "no partition was found that keeps to " + " and ".join(pin.text for pin in pins)
    return InfeasibleError(what, field="pin", need="pins that can hold together")


def lightest(programs: Programs, ask: Ask) -> Lightest:
    """Search the way that holds least, with whichever microbatches, and of what may stay for the backward. All that
    were asked for are tried for as long as there is time, those first that may hold least; the bound is that of all.
    """
    every = _rising(cases(programs, ask), ask)
    best, bounds, few = _lightest(every[0][1], ask), [np.inf], len(ask.mesh.axes()) <= FEW
    end = spent_s() + _PROOF_S
    for floor, case in every:
        if floor >= best.memory:
            break
        candidate = best if case == best.case else _lightest(case, ask) if spent_s() < end else None
        if candidate is not None and few and spent_s() < end:
            candidate = _settled(candidate, ask, end - spent_s())
        if candidate is not None:
            best = min(best, candidate, key=lambda one: one.memory)
        bounds.append(candidate.bound if candidate is not None else floor)
    return replace(best, bound=min(best.memory, *bounds))


def _settled(start: Lightest, ask: Ask, limit_s: float) -> Lightest:
    """Return what holds least with its turns and `keep`, all strategies weighed, or what is known of it after
    so long.
    """
    costs = costs_of(start.case, ask, start.axes)
    rows = spaces(costs, start.axes)
    if rows is None:  # no node of it can be split as it is pinned
        return start
    problem = assemble(costs, rows, float("inf"))
    least = least_memory(problem, limit_s)
    if least.choice is not None and problem.memory(least.choice) < start.memory:
        chosen = tuple(tuple(some[c].tolist()) for some, c in zip(rows, least.choice, strict=True))
        start = replace(start, rows=chosen, memory=problem.memory(least.choice))
    return replace(start, bound=min(max(start.bound, least.bound), start.memory))


def _rising(every: Iterable[Case], ask: Ask) -> list[tuple[float, Case]]:
    """Order cases by the bytes that no strategy of theirs goes below; of equal ones that with most turns first."""
    floors = [(floor_bytes(costs_of(case, ask, ()), ask.mesh.gpus), case) for case in every]
    return sorted(floors, key=lambda one: (one[0], -one[1].training.turns))


def _lightest(case: Case, ask: Ask) -> Lightest:
    """Return the lightest of the adaptive solver, where memory counts before anything else: in bytes, and for the
    objective symtensor as the source paper has it, too.
    """
    axes = ask.mesh.axes()
    costs = costs_of(case, ask, axes)
    orders = tuple(reversed(range(len(axes)))), tuple(range(len(axes)))
    bytes_first = Cutter(costs, axes, None, by_bytes=True)
    cutters = (bytes_first,) if costs.timed else (bytes_first, replace(bytes_first, by_bytes=False))
    tried = [one for cutter in cutters for order in orders for one in _ways(cutter, order)]
    leanest = min(tried, key=lambda one: one.memory)
    bound = floor_bytes(costs, ask.mesh.gpus)
    return Lightest(case, axes, leanest.rows, leanest.memory, min(bound, leanest.memory))


def _ways(cutter: Cutter, order: Sequence[int]) -> list[Division]:
    """Return the cheapest and the leanest."""
    free = cutter.partitioned(0.0, order)
    lean = [cutter.leanest(order, free, lean) for lean in (False, True)] if np.isfinite(free.cost) else []
    return [free, *lean]


def _largest(best: Lightest, ask: Ask) -> tuple[str, float]:
    """Return the tensor with the largest share of what is held, all layers' of it together, and its bytes."""
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
    """Return the fewest GPUs, in steps of doubled and half-way counts, on which one fits that is run as the lightest
    is.
    """
    tried: dict[int, float] = {}

    def fits(times: int) -> bool:
        tried[times] = _held(case, ask, grown, times)
        return tried[times] <= ask.memory_limit

    many = next((2**power for power in range(1, _DOUBLINGS + 1) if fits(2**power)), 0)
    if not many:
        return "a smaller batch or sequence, or more memory: no larger mesh was found to hold it"
    step = max(many // 8, 1)
    times = next((times for times in range(many // 2 + step, many, step) if fits(times)), many)
    return f"{times * ask.mesh.gpus:,} GPUs, on which {_size(tried[times])} would be held"


def _held(case: Case, ask: Ask, grown: Grown, times: int) -> float:
    """Return the bytes that do on so many times as many GPUs; infinite where there are none, or too few."""
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


@dataclass(frozen=True, slots=True)
class Least:
    """The least memory of a problem. choice: that holds least at the peak, or None where every one is forbidden. bound:
    bytes that no choice is below; the choice's own where it is proved to be the least.
    """

    bound: float
    choice: tuple[int, ...] | None


def least_memory(problem: Problem, limit_s: float | None = None) -> Least:
    """Return the least memory of all choices of finite cost, to a relative 1e-9. Whether the problem's limit is reached
    does not matter.

    What is held beside a largest transient of at most so many bytes is least in a problem without a limit, and the more
    the fewer bytes that are. So one such problem says for a range of transients which of them are worth a look.
    """
    end = np.inf if limit_s is None else spent_s() + limit_s
    held = _memory_as_cost(problem)
    whole = space(held)
    if whole is None:
        return Least(np.inf, None)
    values = np.unique(np.concatenate(whole.transient))
    return _Peaks(replace(problem, memory_limit=np.inf), held, whole, values[values >= whole.floor], end).least()


@dataclass(slots=True)
class _Peaks:
    """values: what the largest transient may be, rising."""

    problem: Problem
    held: Problem
    whole: Space
    values: Array
    end: float
    choice: tuple[int, ...] | None = None
    peak: float = np.inf

    def least(self) -> Least:
        """Return the least. A range (first, past) of values is open as long as what is held at `past` leaves room for
        its first.
        """
        last = len(self.values) - 1
        held, place = self._with_transients(last, 0)
        unsettled, open_ = np.inf, [(0, place, held)]
        while open_:
            first, past, held = open_.pop()
            past = min(past, int(np.searchsorted(self.values, self.peak - held)))
            if first >= past:
                continue
            if spent_s() > self.end:
                unsettled = min(unsettled, held + float(self.values[first]))
                continue
            middle = (first + past) // 2
            least, place = self._with_transients(middle, first)
            open_ += [(middle + 1, past, held), (first, place, least)]
        return Least(min(unsettled, self.peak), self.choice)

    def _with_transients(self, most: int, first: int) -> tuple[float, int]:
        """Return the least held with transients up to a value; from which value on that is so. What comes up is
        offered.

        first: the least value that is asked for; what is held is told exactly where it may matter there.
        """
        part = restrict(self.whole, [t <= self.values[most] for t in self.whole.transient])
        if part is None:
            return np.inf, first
        known = Known(self.held, cost=self.peak - float(self.values[first]), end=self.end)
        bound = best(opened(part), known)
        if known.choice is not None:
            peak = self.problem.memory(known.choice)
            if peak < self.peak and np.isfinite(self.problem.cost(known.choice)):
                self.choice, self.peak = tuple(known.choice), peak
        if bound < known.target:  # out of time
            return bound, most + 1
        if known.choice is None:
            return known.cost, first
        largest = max(float(node.transient[c]) for node, c in zip(self.problem.nodes, known.choice, strict=True))
        return known.cost, int(np.searchsorted(self.values, largest))


def _memory_as_cost(problem: Problem) -> Problem:
    """Return the problem whose cost is the memory that its choices hold, without a limit."""

    def table(cost: Array, memory: Array) -> Array:
        return np.where(np.isfinite(cost), memory, np.inf)

    nodes = tuple(
        replace(node, cost=table(node.cost, node.memory), memory=np.zeros_like(node.memory)) for node in problem.nodes
    )
    edges = tuple(replace(e, cost=table(e.cost, e.memory), memory=np.zeros_like(e.memory)) for e in problem.edges)
    return Problem(nodes, edges)
