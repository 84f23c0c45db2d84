"""What a link costs and keeps, read off the numbers of its pairs of layouts: see `symconfig.cost.partition.codes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from symconfig.cost.partition.codes import FORBIDDEN, Numbers, Table, digits
from symconfig.cost.partition.exchange import Phase
from symconfig.cost.partition.layouts import between_turns, states
from symconfig.cost.partition.rates import Array
from symconfig.graph.layout import Truth, cut, where
from symconfig.graph.program.net import Node, Port


class Leg(NamedTuple):
    """One way of an activation over a link. times: in a step. amount: of the whole tensor.

    backward: of the gradient, from the consumer to the producer. gathered: only where all that changes is gathered.
    """

    phase: Phase
    backward: bool
    amount: float
    times: float
    gathered: bool = False


class Kept(NamedTuple):
    """What the consumer of an activation keeps. size: bytes of the whole tensor, of all instances.

    shards: what is gathered for it stays as it came. covered: its producer has what did not change.
    """

    size: float
    shards: bool
    covered: bool


@dataclass(frozen=True, slots=True)
class Activation:
    """there, back: digits [options of the producer, options of the consumer] of the tensor and of its gradient."""

    there: Numbers
    back: Numbers
    legs: tuple[Leg, ...]
    kept: Kept | None
    times: float

    @property
    def transfers(self) -> tuple[tuple[Numbers, float], ...]:
        """Return digits and amount of the tensor's way, and of its gradient's where it has one."""
        amounts = {leg.backward: leg.amount for leg in self.legs}
        ways = ((self.there, amounts[False]), (self.back, amounts.get(True, 0.0)))
        return ways if True in amounts else ways[:1]

    def there_cost(self, table: Table) -> Array:
        """Return the cost of the tensor's way by number of its layouts."""
        return self._cost(table, False)

    def back_cost(self, table: Table) -> Array:
        """Return the cost of the gradient's way by number of its layouts."""
        return self._cost(table, True)

    def _cost(self, table: Table, backward: bool) -> Array:
        legs = tuple(leg for leg in self.legs if leg.backward == backward)

        def summed() -> Array:
            total = np.zeros(len(table.numbers))
            for leg in legs:
                cost = leg.times * table.cost(leg.amount)
                total = total + (np.where(table.gathered, cost, 0.0) if leg.gathered else cost)
            return self.times * total

        return table.once((legs, self.times), summed)

    def memory(self, table: Table) -> Array:
        """Return the bytes that the consumer keeps for its backward, by number of the tensor's layouts."""
        kept = self.kept
        if kept is None:
            return np.zeros(len(table.numbers))

        def held() -> Array:
            (given, share), same = table.shares, table.same
            if kept.shards:
                share, same = np.where(table.gathered, given, share), same | table.gathered
            return kept.size * (np.where(same, 0.0, share) if kept.covered else share)

        return table.once(kept, held)


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter's link. Digits [options of the parameter, options of the operator] of its four transfers.

    gather: the weight to where it is used. turn: the gradient to where it lies between turns. reduction: from there to
    the optimizer's state. update: the new weight back. amounts: of the weight and of its gradient. trainable: the last
    three happen. again: the backward gathers the weight, too.
    """

    gather: Numbers
    turn: Numbers
    reduction: Numbers
    update: Numbers
    amounts: tuple[float, float]
    trainable: bool
    again: bool
    turns: float
    times: float

    @property
    def transfers(self) -> tuple[tuple[Numbers, float], ...]:
        """Return digits and amount of each transfer."""
        weight, gradient = self.amounts
        return (self.gather, weight), (self.turn, gradient), (self.reduction, gradient), (self.update, weight)

    def cost(self, moved: Sequence[Array], ahead: Array, behind: Array) -> Array:
        """Return what of the transfers shows. moved: their costs. ahead, behind: what work beside them hides forward
        and backward.
        """
        once = shown(moved, ahead, behind, again=self.again, trainable=self.trainable, turns=self.turns)
        return self.times * once


def shown(
    moved: Sequence[Array], ahead: Array, behind: Array, *, again: Truth, trainable: Truth, turns: Array | float
) -> Array:
    """Return what of a weight's four transfers shows in a step; all may be of one link, or of many side by side.

    Every turn the gathers and the gradient's way to where it lies between turns. Once a step its reduction, beside what
    the last backward of a turn leaves of the work, and the update, beside what the first forward leaves.
    """
    gather, turn, reduction, update = moved
    turn = where(again, gather, 0.0) + where(trainable, turn, 0.0)
    every = np.maximum(gather - ahead, 0.0) + np.maximum(turn - behind, 0.0)
    once = np.maximum(reduction - np.maximum(behind - turn, 0.0), 0.0)
    once = once + np.maximum(update - np.maximum(ahead - gather, 0.0), 0.0)
    result: Array = turns * every + where(trainable, once, 0.0)
    return result


def activation(given: Port, taken: Port, legs: tuple[Leg, ...], kept: Kept | None, times: float) -> Activation:
    """Make the rule of an activation's link between two ports."""
    there = digits(given.forward[:, None], taken.forward)
    return Activation(there, digits(taken.backward, given.backward[:, None]), legs, kept, times)


def weight(
    source: Node, use: Port, *, flat: bool, amounts: tuple[float, float], again: bool, turns: float, times: float
) -> Weight:
    """Make the rule of a parameter's link to the port where it is used.

    What is used in parts is kept in the same ones; and without `flat`, smaller parts are ruled out.
    """
    stored, summed_at, state = (at[:, None] for at in states(source, np.arange(len(source.options))))
    forward, backward = use.forward, use.backward
    summed = np.asarray(between_turns(summed_at, backward))
    senseless = cut(state) & (cut(forward) | (not flat)) & (state != forward)
    assert source.parameter is not None
    return Weight(
        gather=np.where(senseless, FORBIDDEN, digits(stored, forward)),
        turn=digits(backward, summed),
        reduction=digits(summed, state),
        update=np.broadcast_to(digits(state, stored), summed.shape),  # whatever the operator does
        amounts=amounts,
        trainable=source.parameter.trainable,
        again=again,
        turns=turns,
        times=times,
    )
