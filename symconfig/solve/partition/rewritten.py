"""Rewrites of a program together with its partition, as in Unity (OSDI 2022): a best-first search over programs.

A program costs what the adaptive solver's partition of it costs. The cheapest program that waits is expanded by all
rules at all places, unless it costs more than RELAXED times the best: two rules may gain together what neither gains
alone. The winner is solved once more as it was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heappop, heappush
from math import inf
from time import monotonic

from symconfig.errors import InputError
from symconfig.graph.program.fold import fold
from symconfig.graph.program.program import Program
from symconfig.graph.program.rewrite import Rewrite, canonical, rewrites, rewritten
from symconfig.solve.partition.run import ROUNDING, Ask, Partition, Programs, Solver, partition

RELAXED = 2.0  # of the best cost: a product that is distributed over a sum is one more. TASO's 1.05 is of large graphs
MOST_OPERATORS = 50  # of the folded program
MOST_PROGRAMS = 100  # that are solved for
LEAST_SECONDS = 30.0  # that a search may take, or the time limit of the exact solver if that is longer


@dataclass(frozen=True, slots=True)
class Taken:
    """A rewrite that was taken. cost: of the adaptive solver's partition after it; infinite: none fits."""

    rewrite: Rewrite
    cost: float


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The best program found, with its partition. before: of the program as it was given; None if none fits.

    solved: number of programs that the adaptive solver was asked for. exhausted: all that the rules reach within
    RELAXED were; else they are more than allowed, or the time was over.
    """

    programs: Programs
    partition: Partition
    before: Partition | None
    taken: tuple[Taken, ...]
    solved: int
    exhausted: bool


def rewritten_partition(programs: Programs, ask: Ask, most: int = MOST_PROGRAMS) -> Rewritten | None:
    """Return the best partition over the programs that rewrites reach; None if no program has one that fits.

    It costs no more than that of the program as it was given, which is kept unless another one is cheaper. Raise
    InputError if the folded program has more than MOST_OPERATORS operators.
    """
    program = programs(ask.turns[0])
    folded = len({*fold(program).of})
    if folded > MOST_OPERATORS:
        what = "the graph has too many operators to be rewritten, repeats counted once"
        need = f"<= {MOST_OPERATORS}"
        raise InputError(what, field="rewrite", got=str(folded), need=need, hint="a program of one layer of it")
    before, (path, solved, exhausted) = partition(programs, ask), _searched(programs, ask, most)
    found, best = programs, before
    if path:
        others = _after(programs, [one.rewrite for one in path])
        other = partition(others, ask)
        if other is not None and (before is None or other.cost < before.cost * (1 - ROUNDING)):
            found, best = others, other
    if best is None:
        return None
    return Rewritten(found, best, before, path if best is not before else (), solved, exhausted)


def _searched(programs: Programs, ask: Ask, most: int) -> tuple[tuple[Taken, ...], int, bool]:
    """Return the rewrites to the program that the adaptive solver finds cheapest, how many programs it solved for, and
    whether none is left to expand. Of equal programs the first stays, which has the fewest rewrites. It solves for no
    further program after LEAST_SECONDS or ask.limit_s.
    """
    end = monotonic() + max(LEAST_SECONDS, ask.limit_s)
    ask, first = replace(ask, solver=Solver.ADAPTIVE), ask.turns[0]
    numbers: dict[object, int] = {}

    def cost(some: Programs) -> float:
        found = partition(some, ask)
        return found.cost if found is not None else inf

    least, best, solved = cost(programs), tuple[Taken, ...](), 1
    seen = {canonical(programs(first), numbers)}
    waiting: list[tuple[float, int, Programs, tuple[Taken, ...]]] = [(least, 0, programs, ())]
    while waiting and waiting[0][0] <= RELAXED * least:
        _, _, here, path = heappop(waiting)
        for rewrite in rewrites(here(first)):
            there = _after(here, [rewrite])
            key = canonical(there(first), numbers)
            if key in seen:
                continue
            if solved >= most or monotonic() > end:
                return best, solved, False
            seen.add(key)
            taken = (*path, Taken(rewrite, cost(there)))
            solved += 1
            heappush(waiting, (taken[-1].cost, solved, there, taken))
            if taken[-1].cost < least * (1 - ROUNDING):
                least, best = taken[-1].cost, taken
    return best, solved, True


def _after(programs: Programs, path: Sequence[Rewrite]) -> Programs:
    """Return the programs after these rewrites, by number of microbatches. Cached."""

    @cache
    def made(turns: int) -> Program:
        program = programs(turns)
        for rewrite in path:
            program = rewritten(program, rewrite)
        return program

    return made
