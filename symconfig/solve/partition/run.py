"""From a program and a mesh to the best partition that was found, and what is proved about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from time import monotonic

import numpy as np

from symconfig.cost.machine import machine
from symconfig.cost.partition import rates
from symconfig.cost.partition.costs import Costs, Keep, Objective, Training
from symconfig.cost.partition.floor import floor_bytes
from symconfig.cost.partition.rates import Affine
from symconfig.cost.partition.work import Rows
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.mesh import Axis, Mesh
from symconfig.graph.program.fold import fold
from symconfig.graph.program.net import Net, net
from symconfig.graph.program.program import Program
from symconfig.solve.partition import exact
from symconfig.solve.partition.adaptive import Adapted, Division, Strategy, adaptive
from symconfig.solve.partition.milp import spent_s
from symconfig.solve.partition.pinned import Pin, pinned
from symconfig.solve.partition.problem import assemble
from symconfig.solve.partition.rows import ROUNDING, spaces

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

    memory_limit: bytes of tensors that a GPU may hold. gamma: of the objective symtensor; None: adapted. weights: of
    an element that crosses a level; by default 1. flat: weights
    may be kept in smaller parts than they are used in. turns, keeps: numbers of microbatches in rising order, and what
    stays for the backward, of which the best is taken. between: of a message to another stage of a pipeline. pins: that
    every strategy keeps to. limit_s: for the exact solver.
    """

    mesh: Mesh
    cluster: ClusterDescriptor
    memory_limit: float
    objective: Objective = Objective.TIME
    solver: Solver = Solver.AUTO
    gamma: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    flat: bool = True
    turns: tuple[int, ...] = (1,)
    keeps: tuple[Keep, ...] = tuple(Keep)
    training: Training = field(default_factory=Training)
    precision: str = "bf16"
    between: Affine | None = None
    pins: tuple[Pin, ...] = ()
    limit_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a solver on a case and a mesh shape. cost: infinite if it found nothing cheaper that fits.

    complete: whether `bound` is a lower bound for all strategies with this training on these axes.
    """

    solver: str
    axes: tuple[Axis, ...]
    training: Training
    cost: float
    bound: float
    complete: bool
    seconds: float


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
    gamma: float
    solver: str
    bound: float = 0.0
    optimal: bool = False
    closed: bool = False
    trials: tuple[Trial, ...] = ()

    @property
    def net(self) -> Net:
        return self.costs.net

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


@lru_cache(maxsize=32)
def net_of(programs: Programs, turns: int) -> Net:
    """Return the folded network for `turns` microbatches; the last 32 are cached."""
    return folded(programs(turns))


def cases(programs: Programs, ask: Ask) -> Iterator[Case]:
    """Yield a case for each number of microbatches (ascending) and each `keep`, with pins applied.

    Keep.BORDERS is left out for programs without repeats.
    """
    for turns in ask.turns:
        once = pinned(net_of(programs, turns), ask.pins)
        for keep in ask.keeps:
            if keep is not Keep.BORDERS or once.instances:  # only what repeats has borders
                yield Case(once, replace(ask.training, turns=turns, keep=keep))


def may_fit(case: Case, ask: Ask) -> bool:
    """Return whether the lower bound on bytes per GPU, everything sharded over all GPUs, is within the memory limit."""
    return floor_bytes(costs_of(case, ask, ()), ask.mesh.gpus) <= ask.memory_limit


def costs_of(case: Case, ask: Ask, axes: Sequence[Axis]) -> Costs:
    timed = ask.objective is Objective.TIME
    speeds = rates.seconds(axes, ask.mesh, ask.cluster) if timed else rates.elements(axes, ask.weights)
    gpu = machine(ask.cluster, ask.precision, gpus=ask.mesh.gpus)
    return Costs(case.net, speeds, gpu, case.training, ask.objective, ask.flat, ask.between)


def partition(programs: Programs, ask: Ask) -> Partition | None:
    """Return the best partition that fits, or None if none was found. Raise InputError if the space is too large.

    The adaptive solver tries the cases on every shape of the mesh; more microbatches only if memory was the limit.
    Unless ask.solver is ADAPTIVE, the exact solver then improves on them, the cheapest first (AUTO: only the best
    case's training).
    """
    search, tried = _Search(ask), list[tuple[float, Case, tuple[Axis, ...], Division | None]]()
    shapes = ask.mesh.shapes(FEW)
    turns, tight = 0, True
    free: dict[Keep, float] = {}  # the least without a limit of memory, in fewer turns
    for case in cases(programs, ask):
        if ask.objective is Objective.SYMTENSOR and search.best is not None:
            search.left_out = True  # costs of different gammas cannot be compared: what keeps most, in the fewest turns
            break
        if case.training.turns > turns:
            if not tight and ask.solver is not Solver.EXACT:  # more turns save memory, and that was no hindrance
                search.left_out = True
                break
            turns, tight = case.training.turns, False
        fits, keep, least = may_fit(case, ask), case.training.keep, np.inf
        for axes in shapes if fits else ():
            if free.get(keep, 0.0) >= search.ceiling:  # more turns only add to what every strategy costs
                tried.append((np.inf, case, axes, None))
                continue
            result, hindered, lowest = search.adapted(case, axes)
            tight, least = tight or hindered, min(least, lowest)
            tried.append((result.cost if result is not None else np.inf, case, axes, result))
            if result is None and search.best is not None and ask.solver is Solver.ADAPTIVE:
                break  # the ways of cutting one mesh differ by little
        tight = tight or not fits
        if least < np.inf:
            free[keep] = least
    if ask.solver is not Solver.ADAPTIVE:
        tried.sort(key=lambda one: one[0])
        if ask.solver is Solver.AUTO and search.best is not None:
            best = search.best.costs.training
            search.left_out = any(case.training != best for _, case, _, _ in tried) or search.left_out
            tried = [one for one in tried if one[1].training == best]
        for index, (_, case, axes, result) in enumerate(tried):
            search.searched(case, axes, result, len(tried) - index)
    return search.result(len(shapes))


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
        """Run the adaptive solver on a case and record a trial.

        Its partition becomes the incumbent if one below the ceiling was found.
        """
        started = monotonic()
        costs = costs_of(case, self.ask, axes)
        adapted = adaptive(costs, axes, self.ask.memory_limit, self.ask.gamma, self.ceiling)
        cut = adapted.best
        cost = cut.cost if cut is not None else np.inf
        self.trials.append(
            Trial(
                solver="adaptive",
                axes=axes,
                training=case.training,
                cost=cost,
                bound=0.0,
                complete=False,
                seconds=monotonic() - started,
            )
        )
        if cut is not None:
            self.best = Partition(
                ask=self.ask,
                costs=costs,
                axes=axes,
                rows=cut.rows,
                cost=cut.cost,
                memory=cut.memory,
                gamma=cut.gamma,
                solver="adaptive",
            )
        return adapted

    def searched(self, case: Case, axes: tuple[Axis, ...], first: Division | None, left: int) -> None:
        """Run the exact solver on all rows of every node; record a trial and update the incumbent.

        first: the adaptive solver's partition on these axes, the start. left: number of searches that share the
        remaining time, with this one. Does nothing but set left_out if time is used up and there is an incumbent.
        """
        started, began, ask = monotonic(), spent_s(), self.ask
        if self.best is not None and self.spent_s >= ask.limit_s:
            self.left_out = True
            return
        costs = costs_of(case, ask, axes)
        gamma = np.inf
        if ask.objective is Objective.SYMTENSOR:
            gamma = ask.gamma or (self.best.gamma if self.best is not None else np.inf)
        ceiling = self.ceiling
        rows = spaces(costs, axes, ceiling, gamma)
        cost = bound = ceiling
        if rows is not None:
            problem = assemble(costs, rows, ask.memory_limit, gamma)
            start = _places(rows, first.rows) if first is not None else None
            limit_s = max((ask.limit_s - self.spent_s) / left, 1.0)
            solution = exact.solve(problem, start, limit_s, ceiling)
            cost, bound = solution.cost, min(solution.bound, ceiling)  # rows that cost more are not in the problem
            if solution.choice is not None and cost < ceiling:
                chosen = tuple(tuple(some[c].tolist()) for some, c in zip(rows, solution.choice, strict=True))
                memory = problem.memory(solution.choice)
                self.best = Partition(
                    ask=ask,
                    costs=costs,
                    axes=axes,
                    rows=chosen,
                    cost=cost,
                    memory=memory,
                    gamma=gamma,
                    solver=solution.solver,
                )
        self.spent_s += spent_s() - began
        self.trials.append(
            Trial(
                solver=str(ask.solver),
                axes=axes,
                training=case.training,
                cost=cost,
                bound=bound,
                complete=True,
                seconds=monotonic() - started,
            )
        )

    def result(self, shapes: int) -> Partition | None:
        """Return the incumbent with its bound and what is proved, or None. shapes: number of shapes of the mesh.

        The bound is 0 unless every shape was searched with the incumbent's training.
        """
        best = self.best
        if best is None:
            return None
        complete = [trial for trial in self.trials if trial.complete]
        bounds = [trial.bound for trial in complete if trial.training == best.costs.training]
        bound = min([best.cost, *bounds]) if len(bounds) == shapes else 0.0
        proved = all(trial.bound >= best.cost * (1 - ROUNDING) for trial in complete)
        optimal = bound >= best.cost * (1 - ROUNDING)
        closed = optimal and proved and not self.left_out
        return replace(best, bound=bound, optimal=optimal, closed=closed, trials=tuple(self.trials))


def _places(rows: Sequence[Rows], strategy: Strategy) -> tuple[int, ...] | None:
    """Return the index of each node's row within `rows`; None if one of them is not there."""
    places = [np.flatnonzero((some == np.array(row)).all(axis=1)) for some, row in zip(rows, strategy, strict=True)]
    return tuple(int(at[0]) for at in places) if all(len(at) for at in places) else None
