"""A lattice of degrees on which the graph's sizes become arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from symconfig.graph.derived import AttentionWork, DerivedBlock, Matmul, Phase, Task
from symconfig.graph.dims import Monomial

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lattice:
    """Values of every symbol at the points of a lattice: constants as numbers, degrees as arrays [points].

    known: a cache of evaluated monomials.
    """

    numbers: Mapping[str, float | Array]
    points: int
    known: dict[Monomial, Array] = field(default_factory=dict, compare=False, repr=False)

    def value(self, monomial: Monomial) -> Array:
        """Return a monomial's value at every point, [points]; it is cached, so the caller must not change it.

        Raises:
            KeyError: a symbol has no number.
        """
        value = self.known.get(monomial)
        if value is None:
            value = np.full(self.points, float(monomial.coefficient))
            for name, power in monomial.powers:
                number = self.numbers[name]
                value = value * number**power if power > 0 else value / number ** (-power)
            self.known[monomial] = value
        return value

    def stack(self, monomials: list[Monomial]) -> Array:
        """Return the values of monomials, one row each: [len(monomials), points]."""
        return np.array([self.value(monomial) for monomial in monomials]).reshape(len(monomials), self.points)


LOAD = "expert_imbalance"  # of a rank's slots
# Numbers of a lattice: the load of the rank and layer that have most, over the mean; and what the rank that holds most
# has beyond it in the mean of a stage's layers, were the model one stage. Layers differ in which rank is busy, so that
# it grows with the root of the number of stages. And what all ranks wait for: the load of the rank that has most of a
# layer, in the mean of the layers.
OF_LAYER, OF_STAGE, OF_STEP = "busiest_layer_load", "busiest_stage_excess", "busiest_rank_load"


@dataclass(frozen=True, slots=True)
class Uneven:
    """The imbalance of experts' loads in a block.

    slots: 1 for each kept tensor that grows with a rank's load, else 0, [held]. layer, stage: the numbers `OF_LAYER`
    and `OF_STAGE` of the lattice, [points].
    """

    slots: Array
    layer: Array
    stage: Array

    @classmethod
    def of(cls, block: DerivedBlock, lattice: Lattice) -> Uneven | None:
        """Return the imbalance of a block's kept tensors, `slots` being 1 for those whose size includes LOAD; None if
        there are none, or loads are even (the lattice has no OF_LAYER).
        """
        slots = np.array([_grows(held.elements) for held in block.held], dtype=float)
        if OF_LAYER not in lattice.numbers or not slots.any():
            return None
        layer, stage = (np.broadcast_to(lattice.numbers[name], lattice.points) for name in (OF_LAYER, OF_STAGE))
        return cls(slots, layer, stage)

    def at(self, chosen: NDArray[np.intp]) -> Uneven:
        """Return the imbalance at the selected points."""
        return replace(self, layer=self.layer[chosen], stage=self.stage[chosen])

    def busiest(self, held: Array) -> Array:
        """Return the sizes of a block's tensors on the busiest rank of its layer: [held, points].

        held: sizes on a rank with the mean load.
        """
        return held * (1.0 + np.outer(self.slots, self.layer - 1.0))

    def beyond(self, held: Array) -> Array:
        """Return what the busiest rank keeps of a block's tensors beyond the mean, with a single stage: [held, points].

        held: on a mean rank. The excess grows with the root of the number of stages.
        """
        return held * np.outer(self.slots, self.stage)


def at_busiest(lattice: Lattice) -> Lattice:
    """Return the lattice with the expert load of the busiest rank and layer; unchanged if loads are even."""
    if OF_LAYER not in lattice.numbers:
        return lattice
    return Lattice({**lattice.numbers, LOAD: lattice.numbers[LOAD] * lattice.numbers[OF_LAYER]}, lattice.points)


Seconds = Mapping[tuple[str, Phase], Array]  # of operators


def busiest_work_s(seconds: Seconds, block: DerivedBlock, lattice: Lattice) -> dict[tuple[str, Phase], Array]:
    """Return the seconds of a block's operators on the rank that all others wait for, as a dict by (operator, phase).

    The same seconds if loads are even. Else operators whose sizes include the load take longer in proportion: the last
    tiles of experts with unequal numbers of tokens are half full on average. seconds: on a rank with the mean load.
    """
    if OF_STEP not in lattice.numbers:
        return dict(seconds)
    load, grow = lattice.numbers[OF_STEP], {work.op for work in block.work if any(map(_grows, _sizes(work)))}
    return {key: t * load if key[0] in grow else t for key, t in seconds.items()}


def _grows(size: Monomial) -> bool:
    """Return whether a size includes the load."""
    return any(name == LOAD for name, _ in size.powers)


def _sizes(work: Task) -> Sequence[Monomial]:
    if isinstance(work, Matmul):
        return work.batch, work.m, work.n, work.k
    if isinstance(work, AttentionWork):
        return work.queries, work.steps
    return [size for size, _ in (*work.moved, *work.products)]


def busiest_collectives_s(seconds: Sequence[Array], block: DerivedBlock, lattice: Lattice) -> tuple[Array, ...]:
    """Return the seconds of a block's collectives on the rank that all others wait for, in order.

    Those whose size includes the load take longer in proportion; all are unchanged if loads are even.
    """
    if OF_STEP not in lattice.numbers:
        return tuple(seconds)
    load, both = lattice.numbers[OF_STEP], zip(block.collectives, seconds, strict=True)
    return tuple(t * load if _grows(c.elements) else t for c, t in both)
