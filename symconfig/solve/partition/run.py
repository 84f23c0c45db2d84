"""From a program and a mesh to the best partition that was found, and what is proved about it; where none fits, what is
kept at least and a larger mesh on which one does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np

from symconfig.cost.framework import Framework
from symconfig.cost.machine import machine
from symconfig.cost.partition import rates
from symconfig.cost.partition.costs import Costs, Keep, Objective, Training
from symconfig.cost.partition.kept import floor_bytes, kept_bytes
from symconfig.cost.partition.rates import Prices
from symconfig.cost.partition.work import Rows
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.mesh import Axis, Mesh
from symconfig.errors import InfeasibleError, InputError
from symconfig.format import either, general
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.program.fold import fold
from symconfig.graph.program.net import Net, net, resized
from symconfig.graph.program.program import Program
from symconfig.solve.partition import exact
from symconfig.solve.partition.adaptive import Adapted, Division, Strategy, adaptive
from symconfig.solve.partition.milp import spent_s
from symconfig.solve.partition.pinned import NAMES, Named, Pin, pinned
from symconfig.solve.partition.problem import assemble
from symconfig.solve.partition.rows import spaces
from symconfig.units import GIB

ROUNDING = 1e-9  # relative: sums of the same costs in another order
FEW = 4  # axes on which every node's rows can be weighed one by one
Programs = Callable[[int], Program]  # by the number of microbatches that a step is cut into


class Solver(StrEnum):
    """auto: adaptive, and then exact for the turns and what is kept that it chose. exact: for all of them. Both for as
    long as there is time.
    """

    AUTO = "auto"
    ADAPTIVE = "adaptive"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Ask:
    """A program to be partitioned, and how.

    memory_limit: bytes of tensors that a GPU may hold. gamma: of the objective symtensor; None: adapted. flat: weights
    may be kept in smaller parts than they are used in. turns, keeps: numbers of microbatches in rising order, and what
    stays for the backward, of which the best is taken. between: of a message to another stage of a pipeline. pins: that
    every strategy keeps to. limit_s: for the exact solver. framework: whose bytes per parameter and overlap count.
    """

    mesh: Mesh
    cluster: ClusterDescriptor
    memory_limit: float
    objective: Objective = Objective.TIME
    solver: Solver = Solver.AUTO
    gamma: float | None = None
    flat: bool = True
    turns: tuple[int, ...] = (1,)
    keeps: tuple[Keep, ...] = tuple(Keep)
    training: Training = field(default_factory=Training)
    precision: str = "bf16"
    between: Prices | None = None
    pins: tuple[Pin | Named, ...] = ()
    limit_s: float = 10.0
    framework: Framework = MEGATRON


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a solver on a case and a mesh shape.

    bound: a lower bound for all strategies with this training on these axes; None: the adaptive solver knows none.
    """

    solver: str
    axes: tuple[Axis, ...]
    training: Training
    bound: float | None = None


@dataclass(frozen=True)
class Partition:
    """The best partition found. rows: option of every node of the folded net on every axis. memory: bytes at the peak.

    bound: lower bound for all strategies with the same training on any axes of the mesh (`Mesh.shapes`); 0: unknown.
    optimal: the cost equals the bound. closed: it also holds for all other trainings asked for.
    """

    ask: Ask
    costs: Costs
    axes: tuple[Axis, ...]
    rows: Strategy
    cost: float
    memory: float
    solver: str
    bound: float = 0.0
    optimal: bool = False
    closed: bool = False
    trials: tuple[Trial, ...] = ()

    @property
    def net(self) -> Net:
        return self.costs.net

    @property
    def gamma(self) -> float:
        return self.costs.gamma

    @property
    def gap(self) -> float:
        """Return (cost - bound) / cost, at least 0; 0 if the cost is not positive."""
        return max(0.0, self.cost - self.bound) / self.cost if self.cost > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """A folded network and the training settings (microbatches, `keep`) for which a strategy is searched."""

    net: Net
    training: Training


def folded(program: Program) -> Net:
    """Return the network of a program in which every repeat occurs once."""
    folding = fold(program)
    return net(folding.program, folding.of, folding.runs)


@lru_cache(maxsize=8)
def _nets(programs: Programs) -> dict[int, Net]:
    """Return the networks of these programs that `net_of` has made, by number of microbatches."""
    return {}


def net_of(programs: Programs, turns: int) -> Net:
    """Return the folded network for `turns` microbatches, cached. Programs that share their tensors, as those of a
    model do, have one folding.
    """
    nets = _nets(programs)
    if turns not in nets:
        program, known = programs(turns), next(iter(nets.values()), None)
        alike = known is not None and program.tensors is known.program.tensors
        nets[turns] = resized(known, program) if known is not None and alike else folded(program)
    return nets[turns]


def cases(programs: Programs, ask: Ask) -> Iterator[Case]:
    """Yield a case, with pins applied, for each number of microbatches (in the order of ask.turns) and of ask.keeps.

    Keep.BORDERS is left out for programs without repeats. The pinned network is shared by the cases of one number.
    """
    for turns in ask.turns:
        once = pinned(net_of(programs, turns), ask.pins)
        for keep in ask.keeps:
            if keep is not Keep.BORDERS or once.instances:  # only what repeats has borders
                yield Case(once, replace(ask.training, turns=turns, keep=keep))


def costs_of(case: Case, ask: Ask, axes: Sequence[Axis]) -> Costs:
    """Return the costs of a case on these axes: rates in seconds, or for the objective symtensor in elements sent
    (`rates.elements`). Without ask.gamma, gamma is infinite: memory costs nothing.
    """
    timed = ask.objective is Objective.TIME
    speeds = rates.seconds(axes, ask.mesh, ask.cluster) if timed else rates.elements(axes)
    return Costs(
        case.net, speeds, machine(ask.cluster, ask.precision, gpus=ask.mesh.gpus), ask.framework, case.training,
        ask.objective, ask.flat, ask.between, ask.gamma or float("inf"),
    )  # fmt: skip


def partition(programs: Programs, ask: Ask) -> Partition | None:
    """Return the best partition that fits, or None if none was found. Raise InputError if a node has too many rows.

    The adaptive solver tries each case on every shape of the mesh. Left out: cases whose least bytes exceed the memory
    limit; more microbatches if memory ruled out nothing with fewer (not for EXACT); with symtensor, cases after the
    first that fits; for ADAPTIVE, a case's further shapes once one has no solution and a best is known. Unless
    ask.solver is ADAPTIVE, the exact solver then searches the tried cases and shapes, the cheapest first, for less than
    the best (AUTO: only those with the best one's training).
    """
    search, tried = _Search(ask), list[tuple[float, Case, tuple[Axis, ...], Division | None]]()
    shapes = ask.mesh.shapes(FEW)
    turns, tight = 0, True
    for case in cases(programs, ask):
        if ask.objective is Objective.SYMTENSOR and search.best is not None:
            search.left_out = True  # costs of different gammas cannot be compared: what keeps most, in the fewest turns
            break
        if case.training.turns > turns:
            if not tight and ask.solver is not Solver.EXACT:  # more turns save memory, and that was no hindrance
                search.left_out = True
                break
            turns, tight = case.training.turns, False
        if floor_bytes(costs_of(case, ask, ()), ask.mesh.gpus) > ask.memory_limit:
            tight = True
            continue
        for axes in shapes:
            result, hindered = search.adapted(case, axes)
            tight = tight or hindered
            tried.append((result.cost if result is not None else np.inf, case, axes, result))
            if result is None and search.best is not None and ask.solver is Solver.ADAPTIVE:
                break  # the ways of cutting one mesh differ by little
    if ask.solver is not Solver.ADAPTIVE:
        tried.sort(key=lambda one: one[0])
        if ask.solver is Solver.AUTO and search.best is not None:
            best = search.best.costs.training
            search.left_out = search.left_out or any(case.training != best for _, case, _, _ in tried)
            tried = [one for one in tried if one[1].training == best]
        for index, (_, case, axes, result) in enumerate(tried):
            search.exact(case, axes, result, len(tried) - index)
    return search.result(len(shapes))


def baselines(programs: Programs, found: Partition) -> dict[str, Partition | None]:
    """Return by name in NAMES the best partition of each well-known strategy; None for those that do not fit.

    They are found by the adaptive solver, with the strategy in place of the pins, else as `found` was asked for
    (symtensor: with its gamma).
    """
    ask = replace(found.ask, solver=Solver.ADAPTIVE, gamma=None if found.costs.timed else found.gamma)
    return {name: partition(programs, replace(ask, pins=(Named(name, ask.mesh.gpus),))) for name in NAMES}


@dataclass(slots=True)
class _Search:
    """The best so far, and what was tried."""

    ask: Ask
    best: Partition | None = None
    trials: list[Trial] = field(default_factory=list)
    left_out: bool = False
    spent_s: float = 0.0

    @property
    def ceiling(self) -> float:
        return self.best.cost if self.best is not None else np.inf

    def adapted(self, case: Case, axes: tuple[Axis, ...]) -> Adapted:
        """Return the result of the adaptive solver on a case, below the incumbent's cost; record the trial.

        A partition that it finds becomes the incumbent `best`.
        """
        costs = costs_of(case, self.ask, axes)
        adapted = adaptive(costs, axes, self.ask.memory_limit, self.ceiling)
        self.trials.append(Trial("adaptive", axes, case.training))
        if (cut := adapted.best) is not None:
            self.best = Partition(
                ask=self.ask,
                costs=replace(costs, gamma=cut.gamma),
                axes=axes,
                rows=cut.rows,
                cost=cut.cost,
                memory=cut.memory,
                solver="adaptive",
            )
        return adapted

    def exact(self, case: Case, axes: tuple[Axis, ...], first: Division | None, left: int) -> None:
        """Run the exact solver on a case and record the trial with its bound; what is cheaper becomes the incumbent.

        It searches all rows of every node. first: the adaptive solver's partition
        on these axes, or None, the start. left: number of searches, with this one, that share the remaining CPU time;
        each gets at least a second. If the time is used up and there is an incumbent, only left_out is set. With
        symtensor, gamma is the incumbent's.
        """
        began, ask, ceiling = spent_s(), self.ask, self.ceiling
        if self.best is not None and self.spent_s >= ask.limit_s:
            self.left_out = True
            return
        costs, bound = costs_of(case, ask, axes), ceiling
        if self.best is not None and not costs.timed:
            costs = replace(costs, gamma=self.best.gamma)
        rows = spaces(costs, axes)
        if rows is not None:
            problem = assemble(costs, rows, ask.memory_limit)
            start = _row_indices(rows, first.rows) if first is not None else None
            limit_s = max((ask.limit_s - self.spent_s) / left, 1.0)
            solution = exact.solve(problem, start, limit_s, ceiling)
            bound = min(solution.bound, ceiling)
            if solution.choice is not None and solution.cost < ceiling:
                self.best = Partition(
                    ask=ask,
                    costs=costs,
                    axes=axes,
                    rows=tuple(tuple(some[c].tolist()) for some, c in zip(rows, solution.choice, strict=True)),
                    cost=solution.cost,
                    memory=problem.memory(solution.choice),
                    solver="exact",
                )
        self.spent_s += spent_s() - began
        self.trials.append(Trial(str(ask.solver), axes, case.training, bound))

    def result(self, shapes: int) -> Partition | None:
        """Return the incumbent with its bound, what is proved and all trials; None if there is none.

        shapes: number of shapes of the mesh. The bound is 0 unless the exact solver ran on every shape with the
        incumbent's training. optimal: the cost equals the bound; closed: also no case was left out and no other
        training's bound is below the cost.
        """
        best = self.best
        if best is None:
            return None
        every = [(trial.bound, trial.training) for trial in self.trials if trial.bound is not None]
        bounds = [bound for bound, training in every if training == best.costs.training]
        bound = min([best.cost, *bounds]) if len(bounds) == shapes else 0.0
        optimal = bound >= best.cost * (1 - ROUNDING)
        closed = optimal and not self.left_out and all(one >= best.cost * (1 - ROUNDING) for one, _ in every)
        return replace(best, bound=bound, optimal=optimal, closed=closed, trials=tuple(self.trials))


def _row_indices(rows: Sequence[Rows], strategy: Strategy) -> tuple[int, ...] | None:
    """Return the index of each node's row within `rows`; None if a node's row is not there."""
    places = [np.flatnonzero((some == np.array(row)).all(axis=1)) for some, row in zip(rows, strategy, strict=True)]
    return tuple(int(at[0]) for at in places) if all(len(at) for at in places) else None


DOUBLINGS = 12
Grown = Callable[[int], Mesh | None]  # the mesh of so many times as many GPUs, or None where there is none


def infeasible(programs: Programs, ask: Ask, grown: Grown) -> InfeasibleError:
    """Return (not raise) the error for a program that has no partition which fits. All searches are adaptive.

    With pins, if none is found in unlimited memory either: `excluded`. Else the error states the least bytes that a GPU
    must keep (an even share, of the microbatches and Keep with the least), the weight or tensor with most of it, and as
    hint the first larger mesh that fits (see `nearest`). grown: returns the mesh of n times as many GPUs, or None.
    Raises InputError if nothing repeats and that alone is to run forward again.
    """
    if ask.pins and not _fits(programs, replace(ask, memory_limit=np.inf)):
        return excluded(ask)
    every = list(cases(programs, ask))
    if not every:
        what = "nothing in the graph repeats, so that nothing can run forward again"
        raise InputError(what, field="recompute", need="none or auto")
    each = [kept_bytes(costs_of(case, ask, ())) for case in every]
    held: dict[str, float] = defaultdict(float)
    for name, size in min(each, key=lambda some: sum(size for _, size in some)):
        held[general(name)] += size / ask.mesh.gpus
    name, size = max(held.items(), key=lambda item: (item[1], item[0]))
    turns = f"{either(ask.turns)} microbatch" + ("es" if ask.turns[-1] > 1 else "")
    what = (
        f"no partition was found that fits in memory: with {turns} at least {_size(sum(held.values()))} are kept on a "
        f"GPU, of {_size(ask.memory_limit)}, beside what an operator reads and writes while it runs; most of it is "
        f"{name} ({_size(size)})"
    )
    return InfeasibleError(what, hint=nearest(grown, DOUBLINGS, lambda mesh: _fits(programs, replace(ask, mesh=mesh))))


def _fits(programs: Programs, ask: Ask) -> bool:
    """Return whether the adaptive solver finds any partition; it stops at the first."""
    search = _Search(ask)
    bounds = ((case, floor_bytes(costs_of(case, ask, ()), ask.mesh.gpus)) for case in cases(programs, ask))
    able = (case for case, least in bounds if least <= ask.memory_limit)
    return any(search.adapted(case, axes).best is not None for case in able for axes in ask.mesh.shapes(FEW))


def excluded(ask: Ask) -> InfeasibleError:
    """Return the error for pins that exclude every partition."""
    what = "no partition was found that keeps to " + " and ".join(pin.text for pin in ask.pins)
    return InfeasibleError(what, field="pin", need="pins that can hold together")


def nearest(grown: Grown, doublings: int, fits: Callable[[Mesh], bool]) -> str:
    """Return as text ("64 GPUs") the first mesh of 2, 4, … 2^doublings times the GPUs that `fits`, else advice.

    grown: returns the mesh of so many times as many GPUs; sizes for which it returns None or raises InputError are
    skipped.
    """
    for power in range(1, doublings + 1):
        try:
            mesh = grown(2**power)
        except InputError:
            continue
        if mesh is not None and fits(mesh):
            return f"{mesh.gpus:,} GPUs"
    return "a smaller batch or sequence, or more memory: no larger mesh was found to hold it"


def _size(amount: float) -> str:
    if amount < 0.1 * GIB:
        return f"{amount * 1024 / GIB:,.2f} MiB"
    return f"{amount / GIB:,.2f} GiB" if amount < 100 * GIB else f"{amount / GIB:,.0f} GiB"
