"""The stages of a pipeline: what they are made of, and the sums over their blocks.

Axes of the arrays: s stage shape, r recompute policy, n point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.blocks import KEPT, PASSES, TRANSIENT
from symconfig.cost.framework import Bytes, Framework
from symconfig.cost.lattice import Array
from symconfig.cost.machine import Machine
from symconfig.cost.table import Table
from symconfig.cost.tape import maximum
from symconfig.cost.weights import LARGEST, SUMMED, WEIGHTS
from symconfig.graph.block import Place
from symconfig.graph.layout import Sharding
from symconfig.graph.parts import is_layer
from symconfig.plans.configuration import ZeroStage


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
class Pipeline:
    """One pipeline: stages, chunks of each stage, and the stage shapes that can bind."""

    pp: int
    vpp: int
    stages: tuple[StageShape, ...]


@dataclass(frozen=True, slots=True)
class Pipelines:
    """The pipelines of all points of an evaluation, as arrays.

    Either all have several stages or none has, and either all have several chunks a stage or none has. What has fewer
    stage shapes than others repeats its last one, which then stands for no further stage.

    each: different ones; which: [n], the place of each point's in `each`; of a single one all arrays have n = 1.
    pp, vpp: [n]. index, alike: [s, n]. counts, body: [s, kinds, n]; body without blocks whose input is not kept.
    """

    each: tuple[Pipeline, ...]
    which: NDArray[np.intp]
    pp: Array
    vpp: Array
    index: Array
    alike: Array
    counts: Array
    body: Array

    @staticmethod
    def of(each: Sequence[Pipeline], which: NDArray[np.intp] | None = None) -> Pipelines:
        """Return pipelines as arrays; one with fewer stage shapes than others repeats its last one, with `alike` 0.

        which: the index into `each` of every point, [points]; None: the points are the pipelines themselves.
        """
        most = max(len(one.stages) for one in each)
        rows = [[*one.stages, *[replace(one.stages[-1], alike=0)] * (most - len(one.stages))] for one in each]

        def array(values: Sequence[object]) -> Array:
            """Return the pipelines' values stacked, points last: [x, ..., points] of [each, x, ...]."""
            stacked = np.array(values, dtype=np.float64)
            stacked = stacked.transpose(*range(1, stacked.ndim), 0)
            return stacked if which is None else stacked[..., which]

        return Pipelines(
            each=tuple(each),
            which=np.zeros(1, dtype=np.intp) if which is None else which,
            pp=array([one.pp for one in each]),
            vpp=array([one.vpp for one in each]),
            index=array([[stage.index for stage in row] for row in rows]),
            alike=array([[stage.alike for stage in row] for row in rows]),
            counts=array([[stage.counts for stage in row] for row in rows]),
            body=array([[stage.kept or stage.counts for stage in row] for row in rows]),
        )

    def at(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Pipelines:
        """Return the pipelines of the selected points; itself if there is a single pipeline."""
        if len(self.each) == 1 and self.which.size == 1:
            return self
        arrays = ("which", "pp", "vpp", "index", "alike", "counts", "body")
        return Pipelines(self.each, *(getattr(self, name)[..., chosen] for name in arrays))

    @property
    def several(self) -> bool:
        """Return whether pipelines have several stages."""
        return self.each[0].pp > 1

    @property
    def interleaved(self) -> bool:
        """Return whether stages have several chunks."""
        return self.each[0].vpp > 1

    @property
    def only(self) -> Pipeline:
        """Return the single pipeline; raise ValueError if there are several."""
        (one,) = self.each
        return one


def distinct(
    counts: Sequence[tuple[int, ...]], chunks: Sequence[tuple[tuple[str, ...], ...]]
) -> tuple[StageShape, ...]:
    """Return a StageShape for each set of stages with equal chunks: that of its first stage; `alike` is the set's size.

    No other can be the bottleneck: a later one holds the same weights and fewer microbatches in flight. Blocks must be
    equal in order, too: recompute of the first layers depends on it. counts: blocks of each kind, chunks: kinds of
    blocks of each chunk, per stage.
    """
    alike: dict[tuple[tuple[str, ...], ...], list[int]] = {}
    for index, stage in enumerate(chunks):
        alike.setdefault(stage, []).append(index)
    return tuple(StageShape(same[0], counts[same[0]], len(same), layers(stage)) for stage, same in alike.items())


def layers(stage: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Return the number of layers of each chunk, without embedding and output blocks."""
    return tuple(sum(is_layer(kind) for kind in chunk) for chunk in stage)


_PASSES = (*PASSES, "ends")  # of `Stages`
# Rows of weights that a stage has the sum of, and those that it has the most of; `largest` is of all parameters.
_SUMMED = (*WEIGHTS[: WEIGHTS.index("buffers")], "whole", "matrices", *SUMMED)
_SUMMED_ROWS = [WEIGHTS.index(name) for name in _SUMMED]
_MOST = ("largest", "buffers", "workspaces", "tables", *LARGEST)
GRADIENT_BUFFER_BYTES = 2.0  # an element of Transformer Engine's buffers, in the weight's own bf16


@dataclass(frozen=True, slots=True)
class Offload:
    """What lives in host memory: a share of the optimizer state, and whether the weights do."""

    optimizer: float = 0.0
    weights: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """What all candidates of one evaluation have in common, and the pipelines of their points.

    tied: embedding and output layer share one weight.
    """

    pipelines: Pipelines
    zero: ZeroStage
    offload: tuple[Offload, ...]
    machine: Machine
    framework: Framework
    bytes: Bytes
    tied: bool

    @property
    def sharding(self) -> Sharding:
        """Return which of weight, gradient and optimizer state this ZeRO stage shards over data-parallel ranks."""
        return self.framework.sharding(self.zero)

    def having(self, stages: tuple[StageShape, ...]) -> Setting:
        """Return a copy whose only pipeline has these stage shapes; raise ValueError if there are several."""
        return replace(self, pipelines=Pipelines.of([replace(self.pipelines.only, stages=stages)]))

    @property
    def microbatch_group(self) -> int:
        """Return how many microbatches the only pipeline runs through a chunk before the next; pp by default."""
        return self.framework.microbatch_group or self.pipelines.only.pp

    @property
    def groups(self) -> Array:
        """Return how many microbatches run through a chunk before the next one, pp by default: [points]."""
        fixed = self.framework.microbatch_group
        return np.full_like(self.pipelines.pp, fixed) if fixed else self.pipelines.pp


@dataclass(frozen=True, slots=True)
class Stages:
    """Sums over the blocks of each stage shape: passes [s, r, n], weights [s, n]."""

    forward: Array
    backward: Array
    forward_comm: Array
    backward_comm: Array
    rerun: Array
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
    copied: Array  # [n]: parameters of the look-up table where the last stage holds them as the first one does, or 0
    hidden: Array  # seconds of both passes that another microbatch beside them hides, [s, n]
    # Of matrices that are made orthogonal, as in WEIGHTS.
    matrix: Array
    matrix_expert: Array
    matrix_s: Array
    matrix_expert_s: Array
    largest_matrix: Array
    largest_matrix_expert: Array
    chunks: Array  # [n]: of a stage
    boundary: Array  # [n]
    replicated: Array  # [n]: 1 where every tensor-parallel rank has the whole stream at a stage's border

    def part(self, stages: slice) -> Stages:
        """Return the sums of a slice of the stage shapes; arrays [points] stay as they are."""
        sums = (getattr(self, name) for name in Stages.__slots__)
        return Stages(*(each if each.ndim == 1 else each[stages] for each in sums))

    def policy(self, row: int) -> Stages:
        """Return the sums under one recompute policy, a row of the table; its axis keeps the length 1. Weights stay."""
        passes = {name: getattr(self, name)[:, row : row + 1] for name in _PASSES}
        return replace(self, **passes)

    def divisible(self) -> Stages:
        """Return the sums with the sizes of the largest orthogonalised matrices set to 0.

        Matrices then count as freely divisible among ranks, which gives a lower bound of the busiest rank's share.
        """
        return replace(self, **{name: np.zeros_like(getattr(self, name)) for name in LARGEST})

    @property
    def ahead(self) -> Array:
        """Return a microbatch's forward seconds with its exposed communication: [stages, policies, points]."""
        return self.forward + self.forward_comm

    @property
    def back(self) -> Array:
        """Return a microbatch's backward seconds with its exposed communication: [stages, policies, points]."""
        return self.backward + self.backward_comm

    @property
    def communication(self) -> Array:
        return self.forward_comm + self.backward_comm

    @property
    def seconds(self) -> Array:
        return self.forward + self.backward + self.communication


def stages(table: Table, pipelines: Pipelines, points: NDArray[np.intp], tied: bool) -> Stages:
    """Return the sums over the blocks of each stage shape, at the selected points of the table.

    `transient`, workspaces, and largest blocks and matrices are maxima instead. On the stage with the head, blocks that
    close the model (head, further predictions) keep in `ends` instead of `kept`.

    points: indices into the table's points. tied: embedding and output layer share one weight, which the last stage
    holds a copy of (`copied`), and a stage with both ends holds once.
    """
    counts, places = pipelines.counts, table.places
    # A stage that predicts further tokens without the head keeps them like any other block.
    closes = np.array([place.closes for place in places])[:, None]
    head = closes & (counts[:, [places.index(Place.LAST)]] > 0)
    passes, weights = table.passes[..., points], table.weights[..., points]
    of = dict(zip(WEIGHTS, weights, strict=True))
    sums = summed(counts, passes[:KEPT]).swapaxes(1, 2)
    of_each = table.kept(points, pipelines.pp)
    kept = summed(np.where(head, 0.0, pipelines.body), of_each).swapaxes(0, 1)
    ends = summed(np.where(head, counts, 0.0), of_each).swapaxes(0, 1)
    held = dict(zip(_SUMMED, summed(counts, weights[_SUMMED_ROWS]), strict=True))
    vocabulary = summed(counts, of["vocabulary"] + of["frozen_vocabulary"])
    more, look_up = _extra_embeddings(places, counts, tied), places.index(Place.FIRST)
    held["dense"] = held["dense"] + more * of["vocabulary"][look_up]
    held["frozen"] = held["frozen"] + more * of["frozen_vocabulary"][look_up]
    vocabulary += more * (of["vocabulary"] + of["frozen_vocabulary"])[look_up]
    has = counts > 0
    block = of["dense"] + of["expert"] + of["frozen"] + of["frozen_expert"]
    largest = _max_over_present(has, np.stack([of.get(name, block) for name in _MOST]))
    most = dict(zip(_MOST, largest.swapaxes(0, 1), strict=True))
    buffers = GRADIENT_BUFFER_BYTES * most.pop("buffers") + most.pop("workspaces") + most.pop("tables")
    return Stages(
        **dict(zip(PASSES, sums, strict=False)),
        kept=kept,
        transient=_transient_bytes(table, pipelines, points, passes[TRANSIENT]) + buffers[:, None],
        ends=ends,
        **held,
        **most,
        vocabulary=vocabulary,
        copied=of["vocabulary"][look_up] * (tied or Place.FURTHER in places),
        hidden=summed(counts, table.hidden[..., points].sum(axis=0)),
        chunks=np.broadcast_to(pipelines.vpp, points.shape),
        boundary=table.boundary[points],
        replicated=np.full(points.size, 0.0 if table.blocks[0].derived.sequence_parallel else 1.0),
    )


def summed(counts: Array, of_kinds: Array) -> Array:
    """Return the sum over kinds of count times value: [..., *stages, points].

    counts: blocks of each kind in each stage, [*stages, kinds, points], or with one point for the same counts at all
    points. of_kinds: values of one block, [..., kinds, points].
    """
    if counts.shape[-1] == 1:
        return counts[..., 0] @ of_kinds
    axes = "stuv"[: counts.ndim - 2]
    result: Array = np.einsum(f"{axes}kn,...kn->...{axes}n", counts, of_kinds)
    return result


def _transient_bytes(table: Table, pipelines: Pipelines, points: NDArray[np.intp], transient: Array) -> Array:
    """Return the most bytes of a block of each stage that are alive only in its backward: [stages, policies, points].

    transient: of one block of each kind, [policies, kinds, points]; more where a stage recomputes several layers
    together.
    """
    has = pipelines.counts > 0
    at_once = _max_over_present(has, transient)
    for place, one in enumerate(pipelines.each):
        for row, stage in enumerate(one.stages):
            if stage.together > 1:
                several = _max_over_present(has[row], _transient_together(table, stage.together, points, transient))
                at_once[row] = np.where(pipelines.which == place, several, at_once[row])
    return at_once


def _max_over_present(has: NDArray[np.bool_], of_kinds: Array) -> Array:
    """Return the maximum over the kinds that a stage has at least one block of, at least 0: [*stages, x, points].

    has: whether a stage has a block of each kind, [*stages, kinds, points]. of_kinds: [x, kinds, points].
    """
    result: Array = np.zeros(())
    for kind in range(has.shape[-2]):
        result = maximum(result, np.where(has[..., None, kind, :], of_kinds[:, kind], 0.0))
    return result


def _transient_together(table: Table, together: int, points: NDArray[np.intp], transient: Array) -> Array:
    """Return the bytes alive only during a backward pass if `together` consecutive layers are recomputed at once.

    Only kinds that are layers change: [policies, kinds, points], as `transient`, which is of a single layer.
    """
    spaces = np.array([block.workspace_bytes for block in table.blocks])[:, points]
    layer = np.array([[place is Place.LAYER] for place in table.places])
    entering = table.passes[KEPT][..., points]  # inputs of the layers after the first one
    group = spaces + together * (transient - spaces) + (together - 1) * entering
    return np.where(layer, group, transient)


def _extra_embeddings(places: Sequence[Place], counts: Array, tied: bool) -> Array:
    """Return how many embedding tables more (fewer: below 0) each stage holds than its blocks count: [stages, points].

    A stage with both ends of a tied model holds one less. A stage with a multi-token-prediction block, but not the
    first block, holds one more (Megatron-LM, gpt_model.py).
    """
    first = counts[:, places.index(Place.FIRST)]
    more = np.zeros_like(first)
    if tied:
        more = more - first * counts[:, places.index(Place.LAST)]
    if Place.FURTHER in places:
        more = more + (counts[:, places.index(Place.FURTHER)] > 0) * (1 - first)
    return more
