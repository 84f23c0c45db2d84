"""Recompute policies of a block as 0/1 vectors over its rows: they are the same at all points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from symconfig.cost.lattice import Array
from symconfig.cost.tape import first_axis_max
from symconfig.graph.recompute import Policy


@dataclass(frozen=True)
class Policies:
    """What a block recomputes, keeps and offloads under each of some policies. repeats: a cache of `rerun`."""

    each: Sequence[Policy]
    repeats: dict[tuple[str, ...], Array] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.each)

    def rerun(self, operators: tuple[str, ...]) -> Array:
        """Return 1 for each operator that a policy recomputes, else 0; cached: [policies, operators]."""
        if operators not in self.repeats:
            self.repeats[operators] = _rows([[op in policy.rerun for op in operators] for policy in self.each])
        return self.repeats[operators]

    @cached_property
    def offloaded(self) -> Array:
        """Return 1 for each tensor that a policy keeps in host memory, else 0: [policies, held]."""
        return _rows([policy.offloaded for policy in self.each])

    @cached_property
    def staying(self) -> Array:
        """Return 1 for each tensor that a policy keeps on the GPU, else 0: [policies, held]."""
        kept: Array = _rows([policy.kept for policy in self.each])
        return kept - self.offloaded

    @cached_property
    def always(self) -> Array:
        """Return 1 for each tensor that every policy keeps on the GPU, else 0: [held]."""
        return np.asarray((self.staying > 0).all(axis=0), dtype=np.float64)

    def recomputed_working_set(self, held: Array) -> Array:
        """Return the bytes of the recomputed module with the most tensors, 0 if none is recomputed: [policies, points].

        held: bytes of each tensor, [held, points].
        """
        sums = {unit: held[list(unit)].sum(axis=0) for unit in {unit for policy in self.each for unit in policy.units}}
        zero = np.zeros(held.shape[1])
        most = {
            units: first_axis_max(np.array([zero, *(sums[unit] for unit in units)]))
            for units in dict.fromkeys(policy.units for policy in self.each)
        }
        return np.array([most[policy.units] for policy in self.each])


def _rows(bits: Sequence[Sequence[bool]]) -> Array:
    return np.array(bits, dtype=np.float64)
