"""What a DeepSpeed JSON leaves out, and degrees that do not divide."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.errors import InfeasibleError
from symconfig.verify.states.deepspeed import Settings, rank_states
from tests.sample_models import sample_model

MICRO, STEPS, BATCH = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_is_left_out_has_deepspeeds_defaults(stage: int) -> None:
    real: Any = pytest.importorskip("deepspeed.runtime.zero.config").DeepSpeedZeroConfig(stage=stage)
    ours = Settings.of({"zero_optimization": {"stage": stage}}, 8)
    assert (ours.bucket, ours.sub_group, ours.threshold, ours.overlaps, ours.round_robin) == (
        real.reduce_bucket_size,
        real.sub_group_size,
        real.param_persistence_threshold,
        real.overlap_comm,
        real.round_robin_gradients,
    )


@pytest.mark.parametrize(
    ("batch", "accumulates"),
    [({STEPS: 2}, True), ({STEPS: 1, BATCH: 64, MICRO: 1}, False), ({BATCH: 64, MICRO: 2}, True),
     ({BATCH: 16, MICRO: 2}, False), ({BATCH: 16, MICRO: 2, "sequence_parallel_size": 2}, True), ({MICRO: 2}, False),
     ({BATCH: 16}, False)],
)  # fmt: skip
def test_accumulation_follows_from_the_batch(batch: dict[str, int], accumulates: bool) -> None:
    assert Settings.of(batch, 8).accumulates is accumulates


@pytest.mark.parametrize(
    ("section", "field"),
    [({"tensor_parallel": {"autotp_size": 3}}, "tensor_parallel.autotp_size"),
     ({"sequence_parallel_size": 5}, "sequence_parallel_size"),
     ({"expert_parallel": {"autoep_size": 16}}, "expert_parallel.autoep_size")],
)  # fmt: skip
def test_degrees_that_do_not_divide_are_named(section: dict[str, Any], field: str) -> None:
    with pytest.raises(InfeasibleError, match=f"ds_config.json: {field}: does not divide"):
        rank_states(sample_model("mixtral-8x7b"), {"zero_optimization": {"stage": 1}, **section}, 32, 0)
