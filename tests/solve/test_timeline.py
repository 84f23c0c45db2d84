"""A plan's pipeline simulated: against the stages' own sums and against the formula that the search uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from symconfig.solve.detail import detail
from symconfig.solve.found import Found
from symconfig.solve.pieces import WHOLE
from symconfig.solve.predict import Configuration, as_found
from symconfig.solve.timeline import refined_s, refined_time, times
from tests.sample_models import sample_cluster
from tests.solve.naive import tiny


def found(**fields: Any) -> Found:
    """An odd number of layers with a wide vocabulary, so that no two stages are alike."""
    model = tiny(num_hidden_layers=18, vocab_size=64000)
    asked = {"tp": 1, "pp": 4, "vpp": 2, "dp": 2, "micro": 1, "global_batch": 32, "seq_length": 2048, **fields}
    return as_found(model, sample_cluster(), Configuration(**asked))


@pytest.mark.parametrize("vpp", [1, 2, 4])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"modules": frozenset({"core_attn"})},
        {"modules": WHOLE.modules},
        {"block_layers": 1},
        {"activation_offload": True},
    ],
    ids=["kept", "selective", "full", "first layers", "offloaded"],
)
def test_the_chunks_of_a_stage_take_what_the_stage_takes(vpp: int, how: dict[str, Any]) -> None:
    one = found(vpp=vpp, **how)
    parts = detail(one)
    made = times(one, parts)
    stages = (made.forward + made.recompute + made.backward + made.weight).sum(axis=1)
    expected = parts.sums.seconds[:, 0, 0].copy()
    if one.block_layers:
        whole = detail(replace(one, block_layers=0, choice=WHOLE)).sums.seconds[:, 0, 0]
        layers = np.array([sum(kind == "dense" for kind in sum(one.split.stage(i), ())) for i in range(4)])
        expected += (whole - expected) * vpp / layers  # of embedding and head nothing runs again
    np.testing.assert_allclose(stages, expected, rtol=1e-12)
    assert all((array >= 0).all() for array in (made.forward, made.recompute, made.backward, made.weight))


@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("zero", [0, 1])
def test_the_parts_of_a_refined_step_sum_to_it(vpp: int, zero: int) -> None:
    one = found(vpp=vpp, zero=zero)
    assert sum(refined_time(one, detail(one)).values()) == pytest.approx(refined_s(one), rel=1e-12)


def test_without_a_pipeline_nothing_is_refined() -> None:
    one = found(pp=1, vpp=1)
    parts = detail(one)
    assert refined_s(one) == pytest.approx(float(parts.cost.step_s[0, 0, 0]), rel=1e-12)
