"""What a step's collectives are for, how often they run, and what of them shows: one rule for the sum and the list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from symconfig.cost.partition.change import Move, change, moves, total
from symconfig.cost.partition.rates import Array, Rate
from symconfig.graph.layout import Column, Kind
from symconfig.graph.sharding import Phase


@dataclass(frozen=True)
class Transfer:
    """A change of a tensor's layout. amount: of the whole tensor, in bytes or elements."""

    given: Sequence[Column]
    taken: Sequence[Column]
    amount: float
    rates: Sequence[Rate]

    def moves(self) -> Iterator[Move]:
        return moves(self.given, self.taken, self.amount, self.rates)

    @cached_property
    def cost(self) -> Array | float:
        return change(self.given, self.taken, self.amount, self.rates)


class Exchange(NamedTuple):
    """Transfers that follow one another.

    times: executions per step, for one link. hidden: the work that each execution can overlap with; None for none.
    """

    phase: Phase
    transfers: tuple[Transfer, ...]
    times: Array | float
    hidden: Array | None = None

    @property
    def alone(self) -> Array | float:
        """Return the cost of one execution of all transfers, before any overlap."""
        cost: Any = self.transfers[0].cost
        for transfer in self.transfers[1:]:
            cost = cost + transfer.cost
        result: Array | float = cost
        return result

    @property
    def shown(self) -> Array | float:
        """Return the exposed cost of one execution: the cost minus what is hidden, 0 at least."""
        return self.alone if self.hidden is None else np.maximum(self.alone - self.hidden, 0.0)

    @property
    def cost(self) -> Array | float:
        return self.times * self.shown


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a step, along one axis.

    amount: of the larger buffer on a rank, in bytes or elements. times: per step. cost: of one execution. shown: the
    exposed part of it. transfer: collectives with the same number belong to one change of layout.
    """

    phase: Phase
    kind: Kind
    axis: int
    amount: float
    times: float
    cost: float
    shown: float
    transfer: int = 0


def listed(exchanges: Sequence[Exchange], times: float) -> Iterator[Collective]:
    """Yield the collectives of one pair of layouts, for `times` links; none where nothing moves.

    Their `times * shown` add up to the exchanges' cost: what is hidden is shared among the collectives of one exchange
    in proportion to their costs. Of arrays the first element counts.
    """
    for exchange in exchanges:
        often = times * _number(exchange.times)
        every = [list(transfer.moves()) for transfer in exchange.transfers]
        whole = _number(total(chain(*every)))
        share = _number(exchange.shown) / whole if whole else 0.0
        for number, run in enumerate(every):
            for move in run:
                if often and np.all(move.happens):
                    cost = _number(move.cost)
                    amount, shown = _number(move.amount), share * cost
                    yield Collective(
                        phase=exchange.phase,
                        kind=move.kind,
                        axis=move.axis,
                        amount=amount,
                        times=often,
                        cost=cost,
                        shown=shown,
                        transfer=number,
                    )


def _number(value: Array | float) -> float:
    return float(np.asarray(value).reshape(-1)[0])
