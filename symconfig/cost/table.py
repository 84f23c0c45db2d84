"""Costs of every kind of block under every recompute policy, at every point of a block lattice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.blocks import KEPT, PASSES, SECONDS, TRANSIENT, BlockCost, Policies, evaluate
from symconfig.cost.framework import Framework
from symconfig.cost.lattice import Array, Lattice
from symconfig.cost.machine import Machine
from symconfig.graph.block import Place
from symconfig.graph.derived import DerivedBlock, recompute_policy


@dataclass(frozen=True, slots=True)
class Choice:
    """Recomputed modules, and operators whose kept tensors wait in host memory."""

    modules: frozenset[str] = frozenset()
    offload: frozenset[str] = frozenset()


# "Near-neutral to several GB higher, depending on scope" (Megatron-Bridge, docs/training/cuda-graphs.md); assumed.
GRAPH_BYTES = 2.0 * 2**30


@dataclass(frozen=True, slots=True)
class Table:
    """Costs of every kind of block under every recompute policy at every point.

    passes: [PASSES, policies, kinds, points]. weights: [WEIGHTS, kinds, points]. boundary: bytes between stages,
    [points]. uneven: bytes that the busiest rank keeps for each microbatch in flight beyond the mean, with a single
    stage, [policies, kinds, points]; None if loads are even. hidden: seconds of a forward and of a backward pass that
    overlap with another microbatch and are exposed at the pipeline's begin and end, where there is none, [2, kinds,
    points].
    """

    kinds: tuple[str, ...]
    policies: tuple[Choice, ...]
    passes: Array
    weights: Array
    boundary: Array
    hidden: Array
    blocks: tuple[BlockCost, ...]
    uneven: Array | None = None

    def at(self, chosen: NDArray[np.intp]) -> Table:
        """Return a copy with the arrays at the points with these indices; `blocks` keeps all points."""
        return replace(
            self,
            passes=self.passes[..., chosen],
            weights=self.weights[..., chosen],
            boundary=self.boundary[chosen],
            hidden=self.hidden[..., chosen],
            uneven=None if self.uneven is None else self.uneven[..., chosen],
        )

    def kept(self, chosen: NDArray[np.intp], pp: Array | float) -> Array:
        """Return the bytes that the busiest rank keeps on the GPU per microbatch in flight: [policies, kinds, points].

        chosen: indices of the points. pp: stages of each point's pipeline, [points]; the imbalance grows with its root.
        """
        kept: Array = self.passes[KEPT][..., chosen]
        return kept if self.uneven is None else kept + np.sqrt(pp) * self.uneven[..., chosen]

    @property
    def places(self) -> tuple[Place, ...]:
        """Return where each kind stands in the model."""
        return tuple(block.derived.place for block in self.blocks)

    @property
    def seconds(self) -> Array:
        """Return the seconds of one microbatch through each kind: [policies, kinds, points]."""
        result: Array = self.passes[SECONDS].sum(axis=0)
        return result


OfKinds = Mapping[str, Policies]  # by kind of block, one policy for each choice


def resolve(derived: Mapping[str, DerivedBlock], choices: Sequence[Choice]) -> OfKinds:
    """Return for every kind of block the recompute policy that each choice gives it."""
    return {
        kind: Policies([recompute_policy(block, choice.modules, choice.offload) for choice in choices])
        for kind, block in derived.items()
    }


def block_costs(
    derived: Mapping[str, DerivedBlock], lattice: Lattice, machine: Machine, framework: Framework
) -> tuple[BlockCost, ...]:
    """Return the cost of every kind of block, in order; equal collectives of different kinds are priced once."""
    known: dict[object, Array] = {}
    return tuple(evaluate(block, lattice, machine, framework, known) for block in derived.values())


def table(
    blocks: Sequence[BlockCost], choices: Sequence[Choice], policies: OfKinds, machine: Machine, framework: Framework
) -> Table:
    """Return the table of all kinds of blocks under all choices at every point.

    policies: by kind of block, one for each choice. With CUDA graphs, transient bytes are larger by GRAPH_BYTES.
    """
    passes = [block.passes(policies[block.derived.name], machine.host_bytes_per_s, framework) for block in blocks]
    every = np.stack(passes, axis=2)
    every[TRANSIENT] += GRAPH_BYTES * bool(framework.graphed)
    return _table(blocks, choices, every, policies, least=False)


def bound_table(blocks: Sequence[BlockCost], policies: OfKinds) -> Table:
    """Return a table with one policy that bounds all others from below.

    It is as fast as without recompute and offload, keeps only what every policy keeps, and its transient bytes are just
    the workspaces.
    """
    passes = np.zeros((len(PASSES), 1, len(blocks), blocks[0].boundary_bytes.size))
    for index, block in enumerate(blocks):
        seconds = block.seconds()
        passes[: len(seconds), 0, index] = seconds
        passes[KEPT, 0, index] = policies[block.derived.name].always @ np.array(block.held_bytes)
        passes[TRANSIENT, 0, index] = block.workspace_bytes
    return _table(blocks, [Choice()], passes, policies, least=True)


def _table(
    blocks: Sequence[BlockCost], choices: Sequence[Choice], passes: Array, policies: OfKinds, *, least: bool
) -> Table:
    """Return a table with these passes, and the other arrays from the blocks' costs.

    `uneven` is None if all blocks have even loads. least: the imbalance is of what every policy keeps, for a table of
    one policy.
    """
    kinds = tuple(block.derived.name for block in blocks)
    weights = np.stack([block.weights for block in blocks], axis=1)
    hidden = np.stack([block.hidden_s for block in blocks], axis=1)
    uneven = None
    if any(block.uneven is not None for block in blocks):
        uneven = np.stack([block.uneven_bytes(policies[block.derived.name], least=least) for block in blocks], axis=1)
    return Table(
        kinds=kinds,
        policies=tuple(choices),
        passes=passes,
        weights=weights,
        boundary=blocks[0].boundary_bytes,
        hidden=hidden,
        blocks=tuple(blocks),
        uneven=uneven,
    )
