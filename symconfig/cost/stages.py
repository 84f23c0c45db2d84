"""The stages of a pipeline: what they are made of, and the sums over their blocks.

Axes of the arrays: s stage shape, r recompute policy, n point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.blocks import KEPT, TRANSIENT
from symconfig.cost.framework import Bytes, Framework
from symconfig.cost.lattice import Array
from symconfig.cost.machine import Machine
from symconfig.cost.table import WEIGHTS, Table
from symconfig.graph.operator import Place
from symconfig.graph.parts import is_layer
from symconfig.plans.choices import ZeroStage

_WIDEST = ("vocabulary", "widest", "widest_vector", "widest_expert")
_PASSES = (
    "forward",
    "backward",
    "forward_comm",
    "backward_comm",
    "again",
    "away",
    "kept",
    "transient",
    "ends",
)  # of `Stages`
GRADIENT_BUFFER_BYTES = 2.0  # an element of Transformer Engine's buffers, in the weight's own bf16


@dataclass(frozen=True, slots=True)
class Offload:
    """Share of the optimizer state, and whether the weights, live in host memory."""

    optimizer: float = 0.0
    weights: bool = False


@dataclass(frozen=True, slots=True)
class StageShape:
    """A stage as counts of each kind, its place in the pipeline, and how many stages look the same in time.

    layers: how many each of its chunks has, without the model's ends. together: how many are recomputed at once, and
    of each kind, kept: how many begin such a group and so have their input kept; None: all.
    """

    index: int
    counts: tuple[int, ...]
    alike: int
    layers: tuple[int, ...] = ()
    together: int = 1
    kept: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """What all candidates of one evaluation share."""

    pp: int
    vpp: int
    stages: tuple[StageShape, ...]
    zero: ZeroStage
    offload: tuple[Offload, ...]
    machine: Machine
    framework: Framework
    bytes: Bytes
    tied: bool

    @property
    def microbatch_group(self) -> int:
        """Microbatches that go through a chunk before the next chunk has its turn."""
        return self.framework.microbatch_group or self.pp


@dataclass(frozen=True, slots=True)
class Stages:
    """Sums over the blocks of each stage shape: passes [s, r, n], weights [s, n]."""

    forward: Array
    backward: Array
    forward_comm: Array
    backward_comm: Array
    again: Array
    away: Array  # kept in host memory
    kept: Array
    transient: Array
    ends: Array  # kept by head and loss, once whatever is in flight
    dense: Array
    expert: Array
    frozen: Array
    quantised: Array
    frozen_expert: Array
    vocabulary: Array  # of dense and frozen, the look-up's and the head's
    whole: Array  # of dense, those that every tensor-parallel rank has all of
    matrices: Array  # how many dense and frozen are in
    largest: Array  # parameters of the largest block
    vectors: Array  # of dense, in vectors; this and the next four are 0 where no gradient is kept whole
    widest_table: Array  # trained parameters of the look-up or of the head, whichever has more
    widest: Array  # of the largest other trained matrix
    widest_vector: Array
    widest_expert: Array
    registered: Array  # of transient, what libraries hold beside the allocator
    copied: Array  # [n]: parameters of the look-up table where the last stage holds them as the first one does, or 0
    hidden: Array  # seconds of both passes that another microbatch beside them hides, [s, n]
    boundary: Array  # [n]
    replicated: Array  # [n]: 1 where every tensor-parallel rank has the whole stream at a stage's border

    def at(self, chosen: NDArray[np.intp]) -> Stages:
        """Some of the points."""
        return Stages(*(getattr(self, name)[..., chosen] for name in Stages.__slots__))

    def only(self, stage: int) -> Stages:
        """Take one of the stage shapes, as the only one."""
        sums = (getattr(self, name) for name in Stages.__slots__)
        return Stages(*(each if each.ndim == 1 else each[stage : stage + 1] for each in sums))

    def policy(self, row: int) -> Stages:
        """One of the recompute policies, as the only one."""
        passes = {name: getattr(self, name)[:, row : row + 1] for name in _PASSES}
        return replace(self, **passes)

    def shared(self, parts: int) -> Stages:
        """An equal share of everything."""
        whole = ("boundary", "replicated")
        return Stages(*(getattr(self, name) / (1 if name in whole else parts) for name in Stages.__slots__))

    @property
    def communication(self) -> Array:
        return self.forward_comm + self.backward_comm

    @property
    def seconds(self) -> Array:
        return self.forward + self.backward + self.communication


def stages(table: Table, shapes: Sequence[StageShape], points: NDArray[np.intp], tied: bool) -> Stages:
    """One product with the counts for all arrays at once. tied: both ends use one weight."""
    counts = np.array([shape.counts for shape in shapes], dtype=np.float64)
    # A stage that predicts further tokens without the head keeps them like any other block.
    places = table.places
    head = np.array([place.closes for place in places]) & (counts[:, [places.index(Place.LAST)]] > 0)
    passes, weights = table.passes[..., points], table.weights[..., points]
    of = dict(zip(WEIGHTS, weights, strict=True))
    body = np.where(head, 0.0, [shape.kept or shape.counts for shape in shapes])
    sums = (counts @ passes[:KEPT]).transpose(0, 2, 1, 3)
    kept = (body @ passes[KEPT]).transpose(1, 0, 2)
    ends = (np.where(head, counts, 0.0) @ passes[KEPT]).transpose(1, 0, 2)
    most = _Most(table, points, passes[TRANSIENT], of)
    kinds_of = [tuple(np.flatnonzero(count).tolist()) for count in counts]
    transient = np.array([most.working(shape.together, has) for shape, has in zip(shapes, kinds_of, strict=True)])
    held = counts @ weights[: WEIGHTS.index("buffers")]
    vocabulary = counts @ (of["vocabulary"] + of["frozen_vocabulary"])
    more = _look_ups(places, counts, tied)
    held[WEIGHTS.index("dense")] += more * of["vocabulary"][0]
    held[WEIGHTS.index("frozen")] += more * of["frozen_vocabulary"][0]
    vocabulary += more * (of["vocabulary"] + of["frozen_vocabulary"])[0]
    largest = np.array([most.parameters(has) for has in kinds_of])
    look_up, matrix, vector, of_experts = _widest(weights, counts)
    forward, backward, forward_comm, backward_comm, again, away = sums
    dense, expert, frozen, quantised, frozen_expert = held
    return Stages(
        forward=forward,
        backward=backward,
        forward_comm=forward_comm,
        backward_comm=backward_comm,
        again=again,
        away=away,
        kept=kept,
        transient=transient,
        ends=ends,
        dense=dense,
        expert=expert,
        frozen=frozen,
        quantised=quantised,
        frozen_expert=frozen_expert,
        vocabulary=vocabulary,
        whole=counts @ of["whole"],
        matrices=counts @ of["matrices"],
        largest=largest,
        vectors=counts @ of["vectors"],
        widest_table=look_up,
        widest=matrix,
        widest_vector=vector,
        widest_expert=of_experts,
        registered=np.array([most.registered(has) for has in kinds_of]),
        copied=of["vocabulary"][places.index(Place.FIRST)] * (tied or Place.FURTHER in places),
        hidden=counts @ table.hidden[..., points].sum(axis=0),
        boundary=table.boundary[points],
        replicated=np.full(points.size, 0.0 if table.blocks[0].derived.scheme.sequence_parallel else 1.0),
    )


class _Most:
    """The largest blocks of a stage, by the kinds that it has: stages that have the same ones share them."""

    def __init__(self, table: Table, points: NDArray[np.intp], transient: Array, of: Mapping[str, Array]) -> None:
        """transient: [r, kinds, n]; of: weights by name, [kinds, n]."""
        self._table, self._points, self._transient, self._of = table, points, transient, of
        self._block = of["dense"] + of["expert"] + of["frozen"] + of["frozen_expert"]
        self._working: dict[tuple[int, tuple[int, ...]], Array] = {}
        self._parameters: dict[tuple[int, ...], Array] = {}

    def working(self, together: int, kinds: tuple[int, ...]) -> Array:
        """[r, n]: bytes that are there while a block runs backward. together: layers that are recomputed at once."""
        if (together, kinds) not in self._working:
            mine = list(kinds)
            at_once = _at_once(self._table, together, self._points, self._transient)
            self._working[together, kinds] = (
                at_once[:, mine].max(axis=1, initial=0.0)
                + GRADIENT_BUFFER_BYTES * self._of["buffers"][mine].max(axis=0, initial=0.0)
                + self._of["workspaces"][mine].max(axis=0, initial=0.0)
            )
        return self._working[together, kinds]

    def registered(self, kinds: tuple[int, ...]) -> Array:
        """[n]: bytes that libraries hold for the blocks, all of which use the same."""
        result: Array = self._of["registered"][list(kinds)].max(axis=0, initial=0.0)
        return result

    def parameters(self, kinds: tuple[int, ...]) -> Array:
        """[n]: of the largest block."""
        if kinds not in self._parameters:
            self._parameters[kinds] = self._block[list(kinds)].max(axis=0, initial=0.0)
        return self._parameters[kinds]


def _at_once(table: Table, together: int, points: NDArray[np.intp], transient: Array) -> Array:
    """[r, kinds, n]: bytes alive only while a block runs backward, with what so many layers bring back."""
    if together == 1:
        return transient
    spaces = np.array([block.workspace_bytes for block in table.blocks])[:, points]
    layer = np.array([[place is Place.LAYER] for place in table.places])
    entering = table.passes[KEPT][..., points]  # inputs of the layers after the first one
    group = spaces + together * (transient - spaces) + (together - 1) * entering
    result: Array = np.where(layer, group, transient)
    return result


def _widest(weights: Array, counts: Array) -> Array:
    """[_WIDEST, s, n]: elements of the largest parameters of each stage; 0 where no gradient is kept whole."""
    rows = weights[[WEIGHTS.index(name) for name in _WIDEST]]
    if not rows[_WIDEST.index("widest")].any():
        return np.zeros((len(_WIDEST), len(counts), rows.shape[-1]))
    return np.stack([rows[:, count > 0].max(axis=1, initial=0.0) for count in counts], axis=1)


def _look_ups(places: Sequence[Place], counts: Array, tied: bool) -> Array:
    """[s, 1]: look-up tables that each stage holds beside those that its blocks count.

    A tied head on the first stage needs none of its own. What predicts further tokens looks them up itself, and so
    does a stage of its own hold the table, too (Megatron-LM, gpt_model.py).
    """
    first = counts[:, [places.index(Place.FIRST)]]
    more = np.zeros_like(first)
    if tied:
        more = more - first * counts[:, [places.index(Place.LAST)]]
    if Place.FURTHER in places:
        more = more + (counts[:, [places.index(Place.FURTHER)]] > 0) * (1 - first)
    return more


def distinct(
    counts: Sequence[tuple[int, ...]], chunks: Sequence[tuple[tuple[str, ...], ...]]
) -> tuple[StageShape, ...]:
    """Stages that can bind: of equal stages the first one, which has the most microbatches in flight.

    A later stage with the same blocks holds the same weights and fewer activations, so its peak is never higher.
    The same means in the same order, too: recompute of the first layers of a chunk depends on it.
    """
    alike: dict[tuple[tuple[str, ...], ...], list[int]] = {}
    for index, stage in enumerate(chunks):
        alike.setdefault(stage, []).append(index)
    return tuple(StageShape(same[0], counts[same[0]], len(same), layers(stage)) for stage, same in alike.items())


def layers(stage: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """How many each chunk has, without the model's ends."""
    return tuple(sum(is_layer(kind) for kind in chunk) for chunk in stage)
