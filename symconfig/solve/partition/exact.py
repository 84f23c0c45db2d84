"""The optimum of a partition problem, proved, or the best known with a true bound.

A price on every byte takes the place of the limit (Lagrange), which leaves a sum over nodes and pairs. Its least is
bounded by messages, and found by elimination once few choices are left; a choice whose bound is above the best cost
known goes for good. What the price cannot settle is settled by labels of cost and bytes; where these are too many, by
an integer program; and what is too large for that is split.
The same input gives the same answer; which of equal ones depends on `start` only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symconfig.solve.cbc import spent_s
from symconfig.solve.partition import program
from symconfig.solve.partition.labels import cheapest
from symconfig.solve.partition.marginal import plan
from symconfig.solve.partition.price import Known, State, by_elimination, by_messages, opened, part, search
from symconfig.solve.partition.problem import Problem, Solution
from symconfig.solve.partition.reduce import space, undominated

ENTRIES = 20_000_000  # of all tables of an elimination: 0.3 s and, the largest alone, 160 MB
FEW = 200_000  # entries, that cost less than messages do
SHARES = 30_000  # of an integer program: above, CBC takes seconds for its first relaxation
GAIN = 0.02  # of the gap: less than that, and more sweeps are not worth their time
LOOK = 0.02  # of the bound: how far above it to look where nothing is known
SWEEPS = 12
PRICES = 12


def solve(
    problem: Problem, start: Sequence[int] | None = None, limit_s: float | None = None, below: float = float("inf")
) -> Solution:
    """Solve exactly. start: a choice to begin with, fitting or not. limit_s: of the processor, all told; None: until
    proved.

    below: only what costs less is of interest. Without a choice and optimal: nothing that does fits.
    """
    whole = space(problem)
    if whole is None:
        return Solution("exact", None, np.inf, np.inf, True)
    known = Known(problem, cost=below, end=np.inf if limit_s is None else spent_s() + limit_s)
    here = whole.local(start) if start is not None else None
    if here is not None:
        known.improve(whole, here, 0.0)
    bound = best(opened(whole), known)
    proved = bound >= known.target
    if known.choice is None:
        return Solution("exact", None, np.inf, min(bound, below) if below < np.inf else bound, proved)
    return Solution("exact", known.choice, known.cost, known.cost if proved else bound, proved)


def best(state: State, known: Known) -> float:
    """Improve what is known. Returns a bound on all that it has not found: infinite, or above the target, where it is
    proved.

    Out of time it asks for one bound at least.
    """
    unsettled = np.inf
    open_ = [state]
    while open_:
        now = open_.pop()
        if now.bound >= known.target:
            continue
        if known.late and now.bound > -np.inf:
            unsettled = min(unsettled, now.bound)
        elif not _settled(now, known):
            open_ += reversed(_split(now))
    return unsettled


def _settled(now: State, known: Known) -> bool:
    """Tell whether nothing that is better than the known choice is left of the part."""
    if plan(now.space)[1] > FEW and not (search(now, known, by_messages, PRICES) and _swept(now, known)):
        return True
    if max(now.space.sizes) == 1:
        known.offer(now.space.original([0] * len(now.space.sizes)))
        return True
    entries = plan(now.space)[1]
    while entries <= ENTRIES and (now.bound == -np.inf or not known.late):
        if not search(now, known, by_elimination, PRICES):
            return True
        before, entries = entries, plan(now.space)[1]
        if entries > before / 2:
            return _labelled(now, known) or _programmed(now, known)
    return False


def _swept(now: State, known: Known) -> bool:
    """Sweep at the best price for as long as sweeps gain. False: nothing that is better is left."""
    for _ in range(SWEEPS):
        bound, entries = now.bound, plan(now.space)[1]
        if entries <= FEW or known.late:
            break
        if by_messages(now, known, now.price) is None:
            return False
        if now.bound - bound < GAIN * (known.cost - bound) and plan(now.space)[1] > entries / 2:
            break
    return True


def _labelled(now: State, known: Known) -> bool:
    """Look below ceilings that rise from the bound to the best cost known: the lower, the fewer labels."""
    width = known.cost - now.bound if known.cost < np.inf else LOOK * abs(now.bound)
    prices = (now.price, now.price / 2, now.price * 2, 0.0, None) if now.price else (0.0, None)
    for most in (*(now.bound + width / share for share in (16, 8, 4, 2)), np.inf):
        if known.late:
            return False
        ceiling = min(known.target, most)
        front = cheapest(now.space, prices, ceiling)
        if not front.complete:
            return False
        if front.choice is not None:
            before = known.cost
            known.offer(now.space.original(front.choice))
            return known.cost < before  # else it does not fit after all, for rounding
        now.bound = max(now.bound, ceiling)
    return True


def _programmed(now: State, known: Known) -> bool:
    if sum(pair.size for pair in now.space.pairs) > SHARES:
        return False
    left = undominated(now.space)
    answer = program.best(left, known.target, max(known.end - spent_s(), 0.01))
    now.bound = max(now.bound, answer.bound)
    if answer.choice is None:
        return answer.proved
    known.offer(left.original(answer.choice))
    return answer.proved and now.bound >= known.target


def _split(now: State) -> list[State]:
    """Split in two parts, the more promising one first: by the largest transient where that is loose, or by a node's
    choices.
    """
    space = now.space
    values = np.unique(np.concatenate([t[t > space.floor] for t in space.transient]))
    most, between = now.largest, values[values < now.largest]
    whole = [np.ones(size, dtype=bool) for size in space.sizes]
    if space.limit < np.inf and most > space.floor:
        most = float(between[len(between) // 2]) if len(between) else space.floor
        low = part(now, [t <= most for t in space.transient], space.raised)
        high = part(now, whole, float(values[np.searchsorted(values, most, side="right")]))
        return [child for child in (low, high) if child is not None]
    v = max(
        range(len(whole)), key=lambda node: (space.sizes[node] > 1) * space.sizes[node] * (1 + len(space.around[node]))
    )
    order = np.argsort(now.bounds[v], kind="stable")
    first = np.zeros(len(order), dtype=bool)
    first[order[: (len(order) + 1) // 2]] = True
    halves = ([*whole[:v], mask, *whole[v + 1 :]] for mask in (first, ~first))
    children = (part(now, half, space.raised) for half in halves)
    return [child for child in children if child is not None]
