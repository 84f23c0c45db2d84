"""What a link costs and keeps, read off the numbers of its pairs of layouts: see `symconfig.cost.partition.codes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.codes import FORBIDDEN, Numbers, Table, digits
from symconfig.cost.partition.rates import Array
from symconfig.cost.partition.work import Rows
from symconfig.graph.layout import FLAT, PARTIAL, WHOLE, Truth, cut, where
from symconfig.graph.program.net import Node, Port
from symconfig.graph.sharding import Layouts, Phase, Way


class Leg(NamedTuple):
    """A transfer of an activation, or of its gradient, over a link.

    backward: of the gradient, from consumer to producer. amount: of the whole tensor, in bytes or elements. times: per
    step. gathered: it happens only where the change of layout is nothing but an all-gather.
    """

    phase: Phase
    backward: bool
    amount: float
    times: float
    gathered: bool = False


class Kept(NamedTuple):
    """What the consumer of an activation keeps for its backward.

    size: bytes of the whole tensor, of all instances. shards: a gathered tensor is kept as its shard. covered: without
    a change of layout the producer's own copy serves both.
    """

    size: float
    shards: bool
    covered: bool


@dataclass(frozen=True, slots=True)
class Activation:
    """The link of an activation.

    there, back: digits of the tensor's and the gradient's change of layout, [options of the producer, options of the
    consumer]. kept: None if the consumer keeps nothing. times: instances of the link.
    """

    there: Numbers
    back: Numbers
    legs: tuple[Leg, ...]
    kept: Kept | None
    times: float

    def cost(self, table: Table, backward: bool) -> Array:
        """Return the cost per step of the link's forward legs, or with `backward` of its gradient's legs: [numbers].

        By number of the layout pair, summed over legs, their times per step and the link's instances; a `gathered` leg
        counts only where the change is nothing but an all-gather. Cached in the table; zeros without such legs.
        """
        legs = tuple(leg for leg in self.legs if leg.backward == backward)

        def summed() -> Array:
            total = np.zeros(len(table.numbers))
            for leg in legs:
                cost = leg.times * table.cost(leg.amount)
                total = total + (np.where(table.gathered, cost, 0.0) if leg.gathered else cost)
            return self.times * total

        return table.once((legs, self.times), summed)

    def memory(self, table: Table) -> Array:
        """Return the bytes that the consumer keeps on a rank for its backward, by number of the layout pair: [numbers].

        Zeros if `kept` is None. Else `kept.size` times the share after the change of layout, or with `kept.shards` the
        share before it where the tensor is all-gathered. If the producer's copy is kept, too (`covered`), 0 where that
        copy serves: the layout does not change or, with `shards`, is only gathered. Cached in the table.
        """
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
    """The link of a parameter to an operator that uses it.

    transfers: digits, [options of the parameter, options of the operator], and amounts of its four changes of layout in
    the order of `Layouts.ways`: gather, gradient's turn, reduction, update. trainable: all but the gather happen.
    regathers: the backward gathers the weight again. turns: microbatches per step. times: instances of the link.
    """

    transfers: tuple[tuple[Numbers, float], ...]
    trainable: bool
    regathers: bool
    turns: float
    times: float


def exposed_cost(
    moved: Sequence[Array], ahead: Array, behind: Array, *, regathers: Truth, trainable: Truth, turns: Array | float
) -> Array:
    """Return the exposed cost per step of a weight's transfers, element by element; of one link, or of many.

    moved: costs of gather, of the gradient's change of layout after a backward, of its reduction and of the update.
    ahead, behind: forward and backward work that they may overlap with. Every microbatch exposes the forward's gather
    beyond `ahead`, and in the backward a second gather (if regathers) with the gradient's change (if trainable) beyond
    `behind`. Once a step, if trainable, the reduction counts beyond what the backward transfers leave of `behind`, the
    update beyond what the gather leaves of `ahead`.
    """
    gather, turn, reduction, update = moved
    turn = where(regathers, gather, 0.0) + where(trainable, turn, 0.0)
    every = np.maximum(gather - ahead, 0.0) + np.maximum(turn - behind, 0.0)
    once = np.maximum(reduction - np.maximum(behind - turn, 0.0), 0.0)
    once = once + np.maximum(update - np.maximum(ahead - gather, 0.0), 0.0)
    result: Array = turns * every + where(trainable, once, 0.0)
    return result


def weight(
    source: Node, use: Port, *, flat: bool, amounts: tuple[float, float], regathers: bool, turns: float, times: float
) -> Weight:
    """Return the link of a parameter to the port that uses it: four transfers as digits, [options of both], with
    amounts.

    amounts: of the whole weight and of its whole gradient. The gradient is kept sharded where the parameter's option
    shards it, else partial where the backward leaves it partial. A pair gets FORBIDDEN in the forward transfer if the
    operator uses the weight sharded but the state is sharded otherwise (FLAT, too), and without `flat` also if the
    operator uses it unsharded and the state is sharded. regathers, turns, times: stored as given.
    """
    stored, summed_at, state = (at[:, None] for at in states(source, np.arange(len(source.options))))
    summed = np.where(cut(summed_at), summed_at, np.where(use.backward == PARTIAL, PARTIAL, WHOLE))
    layouts = Layouts(stored, use.forward, use.backward, summed, state, state)
    senseless = cut(state) & (cut(use.forward) | (not flat)) & (state != use.forward)
    assert source.parameter is not None

    def transfer(way: Way[NDArray[np.int64]]) -> tuple[Numbers, float]:
        numbers = np.broadcast_to(digits(way.given, way.taken), summed.shape)
        forbidden = senseless & (way.phase is Phase.FORWARD)
        return np.where(forbidden, FORBIDDEN, numbers), amounts[way.gradient]

    return Weight(
        transfers=tuple(transfer(way) for way in layouts.ways() if way.phase is not Phase.KEPT),  # as FORWARD
        trainable=source.parameter.trainable,
        regathers=regathers,
        turns=turns,
        times=times,
    )


def states(node: Node, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of a parameter's weight, gradient and optimizer state, in the shape of `rows` each.

    rows: options, of any shape. A place: the index of the dim that the axis shards, WHOLE, PARTIAL or FLAT. The state
    is FLAT where the option has a ZeRO stage (1 to 3), else placed as the weight.
    """
    port = node.ports[0]
    flat = np.array([option.zero > 0 for option in node.options])
    weight, gradient = port.forward[rows], port.backward[rows]
    return weight, gradient, np.where(flat[rows], FLAT, weight)
