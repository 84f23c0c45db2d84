"""The price of a byte that bounds best, and what it leaves: choices above the best cost known go on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from symconfig.solve.cbc import spent_s
from symconfig.solve.partition import local
from symconfig.solve.partition.bound import Messages, narrowed, priced, silent, sweep, weighed
from symconfig.solve.partition.marginal import eliminated, marginals, plan
from symconfig.solve.partition.problem import Array, Problem
from symconfig.solve.partition.reduce import Bools, Space

CLOSE = 5e-10  # relative: no more than this may be saved where nothing better is said to exist
LEVEL = 1e-9  # relative: two sums are the same


@dataclass(slots=True)
class Known:
    """The best choice known, by the numbers of the problem. end: of the search, on the processor's clock."""

    problem: Problem
    choice: tuple[int, ...] | None = None
    cost: float = np.inf
    end: float = np.inf
    tried: set[tuple[int, ...]] = field(default_factory=set)
    waiting: list[tuple[Space, tuple[int, ...], float]] = field(default_factory=list)

    @property
    def late(self) -> bool:
        return spent_s() > self.end

    @property
    def target(self) -> float:
        """Return the cost from which on nothing is of interest."""
        return self.cost - CLOSE * abs(self.cost) if self.cost < np.inf else np.inf

    def offer(self, choice: Sequence[int]) -> None:
        cost = self.problem.cost(choice)
        if cost < self.cost and self.problem.fits(choice):
            self.choice, self.cost = tuple(choice), cost

    def look(self, space: Space, choice: Sequence[int], price: float) -> None:
        """Offer a choice, and look near it: at once where no cost is known, or no limit; else where bounds alone settle
        nothing."""
        if self.cost == np.inf or space.limit == np.inf:
            self.improve(space, choice, price)
        else:
            self.offer(space.original(choice))
            self.waiting.append((space, tuple(choice), price))

    def looked(self) -> None:
        """Look near the choices that wait, the latest first: it is the nearest to fitting."""
        while self.waiting:
            self.improve(*self.waiting.pop())

    def improve(self, space: Space, choice: Sequence[int], price: float) -> None:
        """Try the choice (by the numbers of the space), and better ones near it; once for each choice."""
        given = space.original(choice)
        if given in self.tried:
            return
        self.tried.add(given)
        self.offer(given)
        lower = local.descended(space, choice, price)
        self.offer(space.original(lower))
        if space.limit < np.inf:
            for start in {tuple(choice), lower}:
                better = local.fitted(space, start)
                if better is not None:
                    self.offer(space.original(better))


@dataclass(frozen=True, slots=True)
class Point:
    """Cost and bytes held of an assignment that is the best at some price."""

    cost: float
    held: float

    def at(self, price: float) -> float:
        return self.cost + price * self.held


@dataclass(slots=True)
class State:
    """A part of the problem. bound: nothing in it that fits costs less; price: the one that said so.

    bounds: for each node what is known of each choice, and largest, the transient of the latest best one: to split by.
    """

    space: Space
    messages: Messages
    price: float = 0.0
    bound: float = -np.inf
    bounds: tuple[Array, ...] = field(default=())
    largest: float = 0.0

    def narrow(self, keep: Sequence[Bools]) -> bool:
        """Narrow to the choices to keep. False: nothing is left."""
        left = narrowed(self.space, self.messages, keep)
        if left is None:
            return False
        old, (self.space, self.messages) = self.space.kept, left
        at = [np.searchsorted(was, now) for was, now in zip(old, self.space.kept, strict=True)]
        self.bounds = tuple(b[i] for b, i in zip(self.bounds, at, strict=True)) if self.bounds else ()
        return True

    def learn(self, known: Known, price: float, least: float, bounds: Sequence[Array]) -> bool:
        """Learn from a bound of the sum at a price, and for each choice. False: nothing that is better is left."""
        space = self.space
        bound = least - (price * space.room if price else 0.0)
        if bound >= self.bound:
            self.bound, self.price = bound, price
        if self.bound >= known.target:
            return False
        if price:
            rooms = (space.limit - np.maximum(space.floor, t) for t in space.transient)
            bounds = [b - price * room for b, room in zip(bounds, rooms, strict=True)]
        self.bounds = tuple(bounds)
        return self.narrow([b < known.target for b in bounds])


Ask = Callable[[State, Known, float], Point | None]


def opened(space: Space) -> State:
    return State(space, silent(space))


def part(of: State, keep: Sequence[Bools], raised: float) -> State | None:
    """Return the part with the choices to keep, and a transient of at least so many bytes; None: there is none."""
    messages = Messages(list(of.messages.first), list(of.messages.second))
    child = State(replace(of.space, raised=raised), messages, of.price, of.bound, of.bounds)
    return child if child.narrow(keep) else None


def by_messages(state: State, known: Known, price: float) -> Point | None:
    """Sweep each way once. None: nothing that is better is left."""
    of = priced(state.space, price)
    there, back = (sweep(of, state.messages, forward) for forward in (True, False))
    space = state.space
    choice = min(there.choice, back.choice, key=lambda c: _point(space, c).at(price))
    known.look(space, choice, price)
    state.largest = local.transient(space, choice)
    return _point(space, choice) if state.learn(known, price, back.bound, back.bounds) else None


def by_elimination(state: State, known: Known, price: float) -> Point | None:
    """Return the exact least at the price. None: nothing that is better is left."""
    least = eliminated(priced(state.space, price), plan(state.space)[0])
    space = state.space
    known.look(space, least.choice, price)
    state.largest = local.transient(space, least.choice)
    return _point(space, least.choice) if state.learn(known, price, least.least, marginals(least)) else None


def lightest(state: State, known: Known, exactly: bool) -> Point | None:
    """Return the least memory: what cannot fit with a choice forbids it. None: nothing fits."""
    space, of = state.space, weighed(state.space)
    if exactly:
        least = eliminated(of, plan(space)[0])
        choice, bounds = least.choice, marginals(least)
    else:
        messages = silent(space)
        sweep(of, messages, True)
        back = sweep(of, messages, False)
        choice, bounds = back.choice, back.bounds
    known.look(space, choice, 0.0)
    slack = LEVEL * abs(space.limit)  # sums of the same bytes in another order
    keep = [b + np.maximum(space.floor, t) <= space.limit + slack for b, t in zip(bounds, space.transient, strict=True)]
    return _point(space, choice) if state.narrow(keep) else None


def search(state: State, known: Known, ask: Ask, rounds: int) -> bool:
    """Ask at prices between those whose best assignments hold too much and those whose best ones fit.

    Each next price is the one at which the two known best assignments on either side cost the same, until none is
    better there. False: nothing that is better than the known choice is left.
    """
    known.waiting.clear()
    left = _searched(state, known, ask, rounds)
    if left:
        known.looked()
    return left


def _searched(state: State, known: Known, ask: Ask, rounds: int) -> bool:
    price, over, under = state.price, None, None
    for _ in range(rounds):
        point = ask(state, known, price)
        if point is None:
            return False
        if over and under and point.at(price) >= under.at(price) - LEVEL * abs(under.at(price)):
            break
        if point.held > state.space.room:
            over = point
            if under is None:
                under = lightest(state, known, ask is by_elimination)
                if under is None:
                    return False
        else:
            under = point
        if known.late or (price == 0 and under is point):
            break
        price = _between(over, under, price)
    return True


def _between(over: Point | None, under: Point, price: float) -> float:
    """Return the next price. Without one that holds too much, a lower price; where the two are no bracket, a higher
    one.
    """
    if over is None:
        return price / 2 if price > 1e-30 else 0.0
    if over.held <= under.held or under.cost <= over.cost:
        return price * 4 or abs(over.cost) / over.held
    return (under.cost - over.cost) / (over.held - under.held)


def _point(space: Space, choice: Sequence[int]) -> Point:
    return Point(local.cost(space, choice), local.held(space, choice))
