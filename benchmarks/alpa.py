"""Alpa's space inside an operator: a mesh of two dims, of which each splits at most one dim of the operator.

Zheng et al., Alpa, OSDI 2022, section 4.1: a tensor's dim is split along mesh dim 0, 1, both, or neither; operators
never work on partial sums, and a weight is split by its dims. Alpa's ZeRO (reduce-scatter and all-gather in place of an
all-reduce) is a rewrite of the solution afterwards, which it does not weigh; here neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.graph.program.net import Node


@dataclass(frozen=True, slots=True)
class AlpaSpace:
    """mesh: for each axis the mesh dim, 0 or 1, that it is part of."""

    mesh: tuple[int, ...]

    def allows(self, node: Node, rows: Rows) -> NDArray[np.bool_]:
        """Tell which rows Alpa could choose for the node: [rows] of [rows, axes]."""
        able = np.array([self._option(node, index) for index in range(len(node.options))])
        fits = np.asarray(able[rows].all(axis=1))
        for dim in (0, 1):
            mine = rows[:, [axis for axis, part in enumerate(self.mesh) if part == dim]]
            fits = fits & (mine == mine[:, :1]).all(axis=1)
        return fits

    def _option(self, node: Node, index: int) -> bool:
        """Tell what Alpa allows of an option, by its dims and whether it is whole. A copy may sum its gradients before
        they travel, as Alpa's cost of an operator assumes.
        """
        option = node.options[index]
        if node.operator is not None:
            return index == 0 or option.split is not None
        return not option.zero and not (node.copy and option.name == "partial")


def alpa_space(axes: Sequence[Axis], ranks: int | None = None) -> AlpaSpace:
    """Make Alpa's space on the mesh whose dim 0 has so many ranks, innermost first; by default those of the innermost
    level, or about half of the axes where there is one level. Raises ValueError where no axis ends there.
    """
    if ranks is None:
        inner = [axis for axis in axes if axis.level == axes[0].level] if axes else []
        inner = inner if len(inner) < len(axes) else inner[: (len(axes) + 1) // 2]
        ranks = prod(axis.size for axis in inner)
    mesh, done = [], 1
    for axis in axes:
        mesh.append(0 if done < ranks else 1)
        done *= axis.size if done < ranks else 1
    if done != ranks:
        raise ValueError(f"no axis of the mesh ends after {ranks} ranks")
    return AlpaSpace(tuple(mesh))


def alpa_spaces(axes: Sequence[Axis]) -> tuple[AlpaSpace, ...]:
    """Return every mesh of two dims that the axes allow, as Alpa tries all of them."""
    return tuple(AlpaSpace((0,) * inner + (1,) * (len(axes) - inner)) for inner in range(1, len(axes) + 1))
