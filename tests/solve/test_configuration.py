"""A configuration shown as a plan's candidate is the same configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.solve.candidate import described
from symconfig.solve.predict import as_found
from symconfig.solve.prospect import Setup
from tests.sample_models import sample_cluster
from tests.solve.naive import tiny

PLAIN = Setup(
    tp=2,
    pp=2,
    dp=2,
    micro=1,
    global_batch=16,
    seq_length=2048,
    version="core_v0.19",
)


def changed(**changes: Any) -> Setup:
    """PLAIN with other degrees or options."""
    return replace(PLAIN, **changes)


CHANGES: dict[str, dict[str, Any]] = {
    "nothing recomputed": {},
    "selective": {"recompute": "selective", "recompute_modules": ("core_attn", "mlp")},
    "full": {"recompute": "full", "recompute_method": "uniform"},
    "full, two layers at once": {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 2},
    "first layer of each chunk": {"recompute": "full", "recompute_method": "block"},
    "sequence parallel, interleaved, ZeRO 1": {"sequence_parallel": True, "vpp": 2, "zero_stage": 1},
    "Ulysses": {"cp": 2, "cp_comm": "a2a"},
    "half of the optimizer in host memory": {"zero_stage": 1, "optimizer_offload": 0.5},
    "activations in host memory": {"activation_offload": True},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_there_and_back(changes: dict[str, Any]) -> None:
    asked, cluster = changed(**changes), sample_cluster()
    found = as_found(tiny(), cluster, asked)
    assert Setup.of(described(found, cluster, found.request.job), MEGATRON) == asked


@pytest.mark.parametrize("changes", [{}, {"pp": 1, "zero_stage": 1}, {"cp": 2}])
def test_rates_are_those_of_all_gpus(changes: dict[str, Any]) -> None:
    asked, cluster = changed(**changes), sample_cluster()
    found = as_found(tiny(), cluster, asked)
    shown = described(found, cluster, found.request.job).predicted
    tokens = asked.global_batch * asked.seq_length
    assert shown.tokens_per_s_per_gpu * shown.step_s * asked.world_size == pytest.approx(tokens)
    assert shown.mfu == pytest.approx(shown.model_tflops_per_gpu * 1e12 / 312e12)
    assert sum(shown.time.values()) == pytest.approx(shown.step_s)
