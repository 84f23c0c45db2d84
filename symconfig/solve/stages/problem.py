"""What the stage solver is asked and what it answers. Seconds of one microbatch; bytes of one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from symconfig.graph.block import Place
from symconfig.graph.parts import place_of

Array = NDArray[np.float64]
Chunks = tuple[tuple[str, ...], ...]  # kinds of every chunk, chunk j on stage j mod pp
Choices = tuple[tuple[int, ...], ...]  # recompute choice of every block of every chunk


class Scope(Enum):
    """How finely a target can say what is recomputed."""

    MODEL = "one choice for the model"
    FIRST = "choice 1, not faster, for the first layers of every chunk; choice 0 for the rest"


@dataclass(frozen=True, slots=True)
class Layouts:
    """Which cuts a target can say. Layers are all blocks but the ends: embedding, mtp and head.

    any_cut: every contiguous cut with a layer in each chunk; without it only the same number of layers on every chunk
    and the families that first_last and account add.
    """

    any_cut: bool
    empty_ends: bool = False  # with any_cut: a chunk may hold ends and no layer
    empty: bool = False  # with any_cut: a chunk may hold no block at all
    mtp_with_head: bool = True  # with any_cut: mtp lies in the head's chunk
    first_last: bool = False  # the number of layers on the first and/or last stage, the rest evenly over the others
    account: bool = False  # an even split in which the embedding and/or the loss takes the place of a layer
    uneven: bool = True  # with several chunks a stage: also cuts that are uneven (`plans.pipeline_layout.is_uneven`)

    def dealt(self, ends: bool) -> Layouts:
        """Return those of the same number of layers on every chunk; ends: but for the first and the last stage's."""
        return replace(self, any_cut=False, empty=False) if ends else Layouts(any_cut=False)

    def free(self, vpp: int) -> bool:
        """Return whether there are too many cuts to look at each one."""
        return self.any_cut and (self.uneven or vpp == 1)

    def in_last_chunk(self, place: Place) -> bool:
        """Return whether blocks of a place lie in the last chunk, and in no other."""
        return place is Place.LAST or (place is Place.FURTHER and self.mtp_with_head)


@dataclass(frozen=True, slots=True)
class StageProblem:
    """A sequence of blocks to be cut into pp x vpp contiguous chunks; chunk j lies on stage j mod pp.

    The mappings have an entry for each kind of the sequence; their tuples one for each recompute choice, the same
    number everywhere. A stage's peak is its stage_bytes, the state, once and kept bytes of its blocks (kept: times the
    microbatches of the chunk held at the moment) and the largest transient among its blocks, at the worst moment.
    """

    pp: int
    vpp: int
    sequence: tuple[str, ...]
    seconds: Mapping[str, tuple[float, ...]]  # forward, recompute and backward, communication included
    kept_bytes: Mapping[str, tuple[float, ...]]  # of every microbatch in flight
    once_bytes: Mapping[str, tuple[float, ...]]  # whatever is in flight: the head's logits
    state_bytes: Mapping[str, float]  # weights, gradients, optimizer state
    transient_bytes: Mapping[str, tuple[float, ...]]  # working set
    stage_bytes: tuple[float, ...]  # [pp] beside the blocks: a second look-up table on the last stage
    held: tuple[Array, ...]  # [pp] of [moments, vpp]: microbatches of each chunk, at every moment that may be the peak
    limit_bytes: float
    scope: Scope
    layouts: Layouts

    @property
    def choices(self) -> int:
        """Recompute choices of a block."""
        return len(self.seconds[self.sequence[0]])

    def chunk_of(self, kind: str) -> int | None:
        """Return the chunk in which all blocks of a kind lie; None: they may lie in any."""
        place = place_of(kind)
        if self.layouts.in_last_chunk(place):
            return self.pp * self.vpp - 1
        return 0 if place.begins else None


@dataclass(frozen=True, slots=True)
class Assignment:
    """A cut and what is recomputed in it."""

    chunks: Chunks
    choices: Choices


@dataclass(frozen=True, slots=True)
class StageSolution:
    """The fastest assignment found. No assignment is faster than bound_s; optimal: this one is not slower either.

    gap: (slowest_s - bound_s) / slowest_s. alternatives: what a schedule may run faster, in the order in
    which it deserves to be simulated: others with the same slowest stage, then some with a slower one whose rounds are
    shorter (the slowest of the chunks k pp to k pp + pp - 1, summed over k). solver: "bound met" (a cut that is as
    fast as the bound), "enumeration" or "dynamic programming"; "none": it is not proved.
    """

    best: Assignment
    alternatives: tuple[Assignment, ...]
    slowest_s: float
    bound_s: float
    optimal: bool
    gap: float
    stage_s: tuple[float, ...]  # [pp]
    peak_bytes: tuple[float, ...]  # [pp]
    solver: str
    seconds: float  # that the solver took


@dataclass(frozen=True, slots=True)
class Unsatisfied:
    """No assignment fits (proved), or none was found. `leanest_peaks` says how much is missing."""

    proved: bool
