"""Lengths of sequences have the mean and the percentile that are stated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.descriptor.rl import Lengths
from symconfig.solve.lengths import packing, quantiles
from tests.runs.rl.support import step


@given(mean=st.floats(20, 4000), over=st.floats(1.2, 4.0), cut=st.floats(1.0, 3.0))
def test_the_mean_is_the_stated_one_and_nothing_is_longer_than_the_cut(mean: float, over: float, cut: float) -> None:
    longest = int(mean * over * cut) + 1
    found = quantiles(Lengths(mean=mean, p95=min(mean * over, longest), max=longest))
    assert found.mean() == pytest.approx(mean, rel=0.02)
    assert found.max() <= longest
    assert (np.diff(found) >= -1e-9).all()


def test_a_lognormal_distribution_is_found_again() -> None:
    """Against draws of one, whose mean and percentile are taken as stated."""
    drawn = np.random.default_rng(1).lognormal(mean=6.0, sigma=0.7, size=400_000)
    found = quantiles(Lengths(mean=drawn.mean(), p95=float(np.quantile(drawn, 0.95)), max=10**6), 256)
    for share in (0.1, 0.5, 0.9, 0.95):
        assert np.quantile(found, share) == pytest.approx(np.quantile(drawn, share), rel=0.03)


def test_the_documents_of_a_micro_batch_are_prompts_with_their_responses() -> None:
    rl = step()
    lengths = packing(rl).lengths
    assert sum(lengths) / len(lengths) == pytest.approx(rl.mean_tokens, rel=0.02)
    assert max(lengths) <= rl.longest


def test_equal_lengths_are_equal() -> None:
    assert quantiles(Lengths(mean=512.0, p95=None, max=512)) == pytest.approx(512)
