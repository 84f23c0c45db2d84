"""Pipelines as arrays: the stages that can bind, of all points of an evaluation.

Axes of the arrays: s stage shape, n point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.lattice import Array
from symconfig.graph.parts import is_layer


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

        which: the index into `each` of every point, [n]; None where there is only one, whose arrays then have n = 1.
        """
        most = max(len(one.stages) for one in each)
        rows = [[*one.stages, *[one.stages[-1]] * (most - len(one.stages))] for one in each]

        def array(values: Sequence[object]) -> Array:
            """Return the pipelines' values stacked, points last: [x, ..., n] of [each, x, ...]."""
            stacked = np.array(values, dtype=np.float64)
            stacked = stacked.transpose(*range(1, stacked.ndim), 0)
            return stacked if which is None else stacked[..., which]

        return Pipelines(
            each=tuple(each),
            which=np.zeros(1, dtype=np.intp) if which is None else which,
            pp=array([one.pp for one in each]),
            vpp=array([one.vpp for one in each]),
            index=array([[stage.index for stage in row] for row in rows]),
            alike=array(
                [
                    [stage.alike * (place < len(one.stages)) for place, stage in enumerate(row)]
                    for one, row in zip(each, rows, strict=True)
                ]
            ),
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
    """Return the stages that can be the bottleneck: the first of those with equal chunks, and how many these are.

    A later one holds the same weights and fewer microbatches in flight. Blocks must be equal in order, too: recompute
    of the first layers depends on it. counts: blocks of each kind, chunks: kinds of blocks of each chunk, per stage.
    """
    alike: dict[tuple[tuple[str, ...], ...], list[int]] = {}
    for index, stage in enumerate(chunks):
        alike.setdefault(stage, []).append(index)
    return tuple(StageShape(same[0], counts[same[0]], len(same), layers(stage)) for stage, same in alike.items())


def layers(stage: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Return the number of layers of each chunk, without embedding and output blocks."""
    return tuple(sum(is_layer(kind) for kind in chunk) for chunk in stage)
