"""The job's attention kernel: what it costs, what it forbids, and how each framework is told."""

from __future__ import annotations

from typing import Any

import pytest

import symconfig
from symconfig.api.planning import PlanResult
from symconfig.errors import InfeasibleError, InputError

PINS = {"pp": 1, "cp": 1, "mbs": 1, "recompute": "none", "activation_offload": "false"}


def planned(**fields: Any) -> PlanResult:
    given = {"model": "llama2-13b", "cluster": "a100-80gb", "gpus": 16, "global_batch_size": 64, "seq_length": 2048}
    return symconfig.plan(**{**given, **fields})


@pytest.mark.parametrize(
    ("backend", "tp", "zero", "element_bytes"),
    [
        ("megatron", 4, 1, 2),  # the softmax's result, over which the scores were written
        ("deepspeed", 1, 3, 2 + 4 + 2),  # scores, softmax in fp32, its result in 16 bits
    ],
)
def test_scores_in_memory_cost_time_and_memory(backend: str, tp: int, zero: int, element_bytes: int) -> None:
    """Over 4 % of the time: of so few tokens, flash attention's tiles beyond those attended to are a part, too."""
    pins = {**PINS, "tp": tp, "zero": zero, "optimizer_offload": 0}
    flash, unfused = (
        planned(backend=backend, attention=kernel, gpus=32, pins=pins).best for kernel in ("flash", "unfused")
    )
    assert unfused.configuration == flash.configuration
    assert unfused.predicted.step_s > 1.04 * flash.predicted.step_s
    scores = 40 * 40 / tp * 2048**2 * element_bytes  # of 40 layers and 40 heads over tp
    assert unfused.predicted.peak_bytes - flash.predicted.peak_bytes == pytest.approx(scores, rel=0.35)


@pytest.mark.parametrize("backend", ["megatron", "deepspeed"])
def test_context_parallelism_goes_with_flash_only(backend: str) -> None:
    with pytest.raises(InfeasibleError, match="needs flash attention"):
        planned(backend=backend, attention="unfused", pins={"cp": 2})


def test_what_the_gpu_does_not_have_is_not_promised() -> None:
    with pytest.raises(InputError, match="not there for this GPU"):
        planned(cluster="v100-16gb", attention="flash")
