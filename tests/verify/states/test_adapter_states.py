"""Adapters on a rank: what Megatron-Bridge's own modules hold (tests/formats/bridge/built.py), and what lasts."""

from __future__ import annotations

from symconfig.descriptor.load import load_model
from symconfig.verify.states.megatron import MAIN_BYTES, MOMENTS_BYTES, WEIGHT_BYTES, rank_states
from tests.sample_plans import sample_plan


def test_a_rank_trains_what_megatron_bridge_builds() -> None:
    """Llama-2-70B with rank 16 on q, k, v and o, at tp 2 and pp 2: counted in megatron-bridge 0.3.1."""
    plan = sample_plan(load_model("llama2-70b-lora"), "h100", tp=2, pp=2, cp=2, dp=1, version="core_v0.16.1")
    for rank in (0, 4):
        states = rank_states(plan, rank)
        trained = [item.elements for chunk in states.chunks for item in chunk.parameters if item.trainable]
        assert sum(trained) == 16_384_000


def test_frozen_weights_have_no_gradient_and_no_optimizer_state() -> None:
    plan = sample_plan(load_model("qwen2.5-7b-lora"), "h100", tp=1, pp=1, dp=8, version="core_v0.16.1")
    states = rank_states(plan, 0)
    trained = sum(item.elements for chunk in states.chunks for item in chunk.parameters if item.trainable)
    assert trained == 161_480_704
    assert sum(buffer.unpadded for buffer in states.buffers) == trained
    assert states.optimizer_shard_bytes <= (MAIN_BYTES + MOMENTS_BYTES) * (trained / 8 + 1e6)
    assert states.weight_bytes >= WEIGHT_BYTES * states.parameters
