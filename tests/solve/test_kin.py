"""Relatives on a tree of normal distributions."""

from __future__ import annotations

import numpy as np
import pytest

from symconfig.solve.interval import Relative, posterior


def test_a_member_that_is_known_is_what_it_is_and_a_stranger_is_the_roots() -> None:
    seen = [Relative(("a", "b", "c"), 0.7, 0.0)]
    assert posterior(("a", "b", "c"), seen, (1, 1, 1)) == pytest.approx((0.7, 0.0))
    assert posterior(("x", "b", "c"), seen, (1, 1, 1)) == pytest.approx((0.0, 3.0))
    assert posterior(("a",), [], (2,)) == pytest.approx((0.0, 2.0))


def test_it_is_what_drawing_many_families_gives() -> None:
    """Members of two branches, observed with noise; the conditional mean by least squares over many draws."""
    rng = np.random.default_rng(3)
    n = 400_000
    root, left, right = rng.normal(0, 0.5, n), rng.normal(0, 1, n), rng.normal(0, 1, n)
    first, second, other = root + left + rng.normal(0, 2, n), root + left + rng.normal(0, 2, n), root + right
    wanted = root + left + rng.normal(0, 2, n)
    noisy = np.stack([first + rng.normal(0, 0.3, n), second, other + rng.normal(0, 2, n)])
    weights = np.linalg.lstsq(noisy.T, wanted, rcond=None)[0]
    at = (0.4, -1.0, 2.0)
    variances = (0.25, 1.0, 4.0)
    paths = (("r", "left", 1), ("r", "left", 2), ("r", "right", 3))
    seen = [Relative(path, value, noise) for path, value, noise in zip(paths, at, (0.09, 0.0, 0.0), strict=True)]
    mean, variance = posterior(("r", "left", 9), seen, variances)
    assert mean == pytest.approx(float(weights @ at), abs=0.01)
    assert variance == pytest.approx(float(np.var(wanted - weights @ noisy)), rel=0.02)
