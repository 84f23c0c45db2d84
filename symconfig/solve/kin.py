"""What is believed of a member of a family from its relatives: a tree of normal distributions.

A member is what the levels above it add up to, each a deviation of its own: of two members those levels are the same
that stand first in both paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Path = tuple[object, ...]  # from the root down; as many names as there are levels


@dataclass(frozen=True, slots=True)
class Relative:
    """An observed member; value: its deviation from the root's mean; variance: of the observation's error."""

    path: Path
    value: float
    variance: float


def posterior(path: Path, seen: Sequence[Relative], variances: Sequence[float]) -> tuple[float, float]:
    """Return (mean, variance) of a member given observed relatives, as deviations from the root's mean.

    The best linear estimate (Gaussian process) if two members covary by the levels that their paths share. variances:
    of each level, from the root down; each path has as many names. Without relatives the mean is 0.
    """
    among = np.array([[_shared(a.path, b.path, variances) for b in seen] for a in seen]).reshape(len(seen), len(seen))
    among += np.diag([each.variance for each in seen])
    mine = np.array([_shared(path, each.path, variances) for each in seen])
    weights = np.linalg.solve(among, mine)
    mean = float(weights @ np.array([each.value for each in seen]))
    return mean, float(_shared(path, path, variances) - weights @ mine)


def _shared(a: Path, b: Path, variances: Sequence[float]) -> float:
    """Return the covariance of two members: the sum of the variances of the levels before their paths first differ."""
    result = 0.0
    for mine, other, variance in zip(a, b, variances, strict=True):
        if mine != other:
            break
        result += variance
    return result
