"""Each kind of block alone at many points: what a layout's sums are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.blocks import TRANSIENT
from symconfig.cost.lattice import Array
from symconfig.cost.shapes import Pipeline, Pipelines, StageShape
from symconfig.cost.stages import GRADIENT_BUFFER_BYTES, Setting, stages
from symconfig.cost.step import states
from symconfig.cost.table import WEIGHTS, Table
from symconfig.graph.parts import is_layer
from symconfig.plans.columns import Columns

Bools = NDArray[np.bool_]
ROUNDING = 1e-9  # sums of the same seconds or bytes in another order
_OF_CHOICE, _OF_POINT = ("forward", "backward", "kept", "once", "transient"), ("buffers", "workspaces", "states")


@dataclass(frozen=True, slots=True)
class Kinds:
    """Each kind of block alone. Seconds and bytes of one microbatch [kinds, r, n].

    backward: with what runs again. kept: for every microbatch in flight; once: whatever is in flight. transient: while
    a block runs; a stage needs the most of its blocks', and the most of their buffers [kinds, n] and of their
    workspaces [kinds, n]. states: weights, gradients and optimizer state on the device, [kinds, o, n].
    """

    names: tuple[str, ...]
    counts: Array  # [kinds] in the model
    forward: Array
    backward: Array
    kept: Array
    once: Array
    transient: Array
    buffers: Array
    workspaces: Array
    states: Array

    @property
    def seconds(self) -> Array:
        return self.forward + self.backward

    @property
    def layers(self) -> Bools:
        """Tell which kinds are no ends: [kinds]."""
        return np.array([is_layer(name) for name in self.names])

    def at(self, chosen: NDArray[np.intp]) -> Kinds:
        """Return the kinds at some of the points."""
        return replace(self, **{name: getattr(self, name)[..., chosen] for name in (*_OF_CHOICE, *_OF_POINT)})

    def under(self, r: NDArray[np.intp], n: NDArray[np.intp]) -> Kinds:
        """Return the kinds at some of the points, each under a recompute choice of its own, as the only one."""
        chosen = {name: getattr(self, name)[:, r, n][:, None] for name in _OF_CHOICE}
        return replace(self, **chosen, **{name: getattr(self, name)[..., n] for name in _OF_POINT})

    def leanest(self) -> Kinds:
        """Return the same under one recompute choice that none beats in memory: of everything the least."""
        least = {name: getattr(self, name).min(axis=1, keepdims=True) for name in ("kept", "once", "transient")}
        return replace(self, **least)


def kinds_alone(table: Table, totals: Array, chosen: NDArray[np.intp], where: Columns, setting: Setting) -> Kinds:
    """Return the kinds at the chosen points of a table; where: their degrees. totals: [kinds] in the model."""
    alone = tuple(StageShape(0, tuple(row), 1) for row in np.eye(len(table.kinds), dtype=np.int64))
    pipelines = replace(Pipelines.of([Pipeline(1, 1, alone)]), pp=np.broadcast_to(where.pp, chosen.shape))
    sums = stages(table, pipelines, chosen, setting.tied)
    state: Array = sum(states(sums.divisible(), where, setting).values(), np.zeros(1))
    forward, backward = sums.ahead, sums.back
    transient = table.passes[TRANSIENT][..., chosen].transpose(1, 0, 2)
    buffers, workspaces = (table.weights[WEIGHTS.index(name)][..., chosen] for name in ("buffers", "workspaces"))
    return Kinds(
        names=table.kinds,
        counts=totals,
        forward=forward,
        backward=backward,
        kept=sums.kept,
        once=sums.ends,
        transient=transient,
        buffers=GRADIENT_BUFFER_BYTES * buffers,
        workspaces=workspaces,
        states=state,
    )
