"""ZeRO by layouts: where a weight, its gradient and its optimizer state lie on the ranks that hold the same weights.

Which collectives a step has follows from pairs of these layouts, as everywhere (`layout.moves`), and how often each
runs from where in the step its pair stands (arXiv 1910.02054; PyTorch's hybrid sharding; DeepSpeed's stages).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Generic, TypeVar

from symconfig.graph.dims import ONE
from symconfig.graph.layout import FLAT, GTP, INSTANCES, PARTIAL, Layout, Move, moves

DATA = ("dp", "cp", "edp", INSTANCES)  # axes whose ranks hold the same weights and see other tokens

T = TypeVar("T")


class Phase(StrEnum):
    """Name the phase in which a tensor changes its layout: REDUCTION and UPDATE once a step, the others with every
    microbatch.
    """

    FORWARD = "forward"
    RECOMPUTED = "recomputed forward"
    KEPT = "backward, gathered again"
    BACKWARD = "backward"
    REDUCTION = "gradient reduction"
    UPDATE = "updated weights"

    @property
    def once(self) -> bool:
        return self in (Phase.REDUCTION, Phase.UPDATE)


@dataclass(frozen=True, slots=True)
class Way(Generic[T]):
    """Describe a change of layout in a step, of the weight or (`gradient`) of its gradient, from `given` to `taken`."""

    phase: Phase
    gradient: bool
    given: T
    taken: T


@dataclass(frozen=True, slots=True)
class Layouts(Generic[T]):
    """Hold all layouts of one weight, in the form of `moves` or as arrays of places.

    stored: the weight between uses. used: as operators read it. produced: its gradient after a backward. between:
    the gradient between microbatches. reduced: the gradient for the optimizer, summed over data-parallel ranks.
    state: the optimizer's state, and the updated weight before it is gathered.
    """

    stored: T
    used: T
    produced: T
    between: T
    reduced: T
    state: T

    def ways(self) -> tuple[Way[T], ...]:
        """Return the changes of layout of a step in order; a change may have equal layouts on both sides."""
        return (
            Way(Phase.FORWARD, False, self.stored, self.used),
            Way(Phase.KEPT, False, self.stored, self.used),
            Way(Phase.BACKWARD, True, self.produced, self.between),
            Way(Phase.REDUCTION, True, self.between, self.reduced),
            Way(Phase.UPDATE, False, self.state, self.stored),
        )


@dataclass(frozen=True, slots=True)
class Sharding:
    """Say which layouts of a weight are sharded flat over the ranks that would otherwise hold replicas.

    weight: as stored. gradient: between microbatches; else each rank accumulates its own until the end of the step.
    state: of the optimizer. whole_gradients: every rank gets the whole summed gradient though it needs only its
    shard. over_tensor: flat shards extend over tensor-parallel ranks that hold replicas, too. instances: ranks form
    several groups, each with all shards.
    """

    weight: bool = False
    gradient: bool = False
    state: bool = False
    whole_gradients: bool = False
    over_tensor: bool = False
    instances: bool = False

    @staticmethod
    @cache
    def of(stage: int, *, whole_gradients: bool, over_tensor: bool, instances: bool) -> Sharding:
        """Return the sharding of a ZeRO stage (0 to 3). `whole_gradients` has no effect at stage 3, `over_tensor` only
        at stage 3, `instances` none at stage 0. Cached.
        """
        weight, gradient, state = (stage >= least for least in (3, 2, 1))
        return Sharding(
            weight, gradient, state, whole_gradients and not weight, over_tensor and weight, instances and state
        )

    @property
    def each_microbatch(self) -> bool:
        """Return whether weights or gradients are communicated with every microbatch."""
        return self.weight or self.gradient

    def layouts(self, used: Layout, summed: tuple[str, ...], over_gtp: bool = False) -> Layouts[Layout]:
        """Return the layouts of a weight. used: as operators read it. summed: axes over which its gradient is partial.

        over_gtp: the weight is cut FLAT over GTP, too, if its gradient is partial there: it is stored so whatever the
        stage, and its gradient is summed and cut so after every backward.

        A shard is `used` cut FLAT over the data axes of `summed` but INSTANCES and, with `over_tensor`, over tp if the
        weight is no expert's (no edp) and not split over tp. stored and state are a shard if `weight` or `state` is
        set, else `used`. The gradient is reduced to a shard if `state` is set without `whole_gradients`, else to
        `used`, and stays partial over the axes of `summed` that are not data axes or cut. Between microbatches it is
        the reduced one if `gradient` is set, else as produced.
        """
        data = tuple(axis for axis in summed if axis in DATA)
        cut = [axis for axis in data if axis != INSTANCES]
        shard = used.at([GTP], FLAT) if over_gtp and GTP in summed else used
        if self.over_tensor and "edp" not in data and used.where("tp") is None:
            cut.append("tp")
        parted, produced = shard.at(cut, FLAT), used.at(summed, PARTIAL)
        reduced = parted if self.state and not self.whole_gradients else shard
        rest = [axis for axis in summed if shard.where(axis) is None]  # partial after each backward
        reduced = reduced.at((axis for axis in rest if axis not in (*data, *cut)), PARTIAL)
        return Layouts(
            stored=parted if self.weight else shard,
            used=used,
            produced=produced,
            between=reduced if self.gradient else shard.at(rest, PARTIAL),
            reduced=reduced,
            state=parted if self.state else shard,
        )

    def ways(
        self, used: Layout, summed: tuple[str, ...], trained: bool = True, over_gtp: bool = False
    ) -> tuple[Way[Layout], ...]:
        """Return a weight's changes of layout in a step, in order; if not `trained`, only those of the weight itself in
        FORWARD and KEPT. A trained one also has a REDUCTION of its gradient over the axes that are still partial,
        between the gradient reduction and UPDATE. used, summed, over_gtp: see `layouts`.
        """
        layouts = self.layouts(used, summed, over_gtp)
        *ways, update = layouts.ways()
        rest = Way(Phase.REDUCTION, True, layouts.reduced, layouts.reduced.summed())
        return (*ways, rest, update) if trained else tuple(way for way in ways if not way.gradient)


@cache
def over_replicas(sharding: Sharding) -> tuple[tuple[Way[Layout], tuple[Move, ...]], ...]:
    """Return the (change of layout, its collectives) of a weight of one element that is replicated over dp only, or
    over dp and INSTANCES if `sharding.instances`. Cached. Changes without collectives are left out; `over_tensor` is
    ignored.
    """
    replicas = ("dp", INSTANCES) if sharding.instances else ("dp",)
    ways = replace(sharding, over_tensor=False).ways(Layout(), replicas)
    every = tuple((way, moves(way.given, way.taken, ONE)) for way in ways)
    return tuple((way, some) for way, some in every if some)
