"""Megatron's own layers beside Transformer Engine's: more passes over memory, more kept, other libraries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.cost.framework import Framework
from symconfig.cost.machine import machine
from symconfig.frameworks.behaviour import usual
from symconfig.frameworks.megatron.behaviour import MEGATRON, MEGATRON_LOCAL, TransformerImpl
from symconfig.graph.implementation import Kernel
from symconfig.solve.predict import Prediction, predict
from tests.sample_configurations import configuration
from tests.sample_models import sample_cluster, sample_model

S = 2048
CASES = {
    "llama2-13b": configuration(tp=4, dp=2, micro=1, global_batch=8, seq_length=S, sequence_parallel=True, zero=1),
    "gpt3-175b": configuration(tp=8, pp=8, micro=1, global_batch=16, seq_length=S, sequence_parallel=True, zero=1),
    "mixtral-8x7b": configuration(pp=4, dp=8, micro=1, global_batch=64, seq_length=S, ep=8, zero=1),
    "deepseek-v3": configuration(
        tp=2, pp=16, dp=32, micro=1, global_batch=512, seq_length=S, ep=64, sequence_parallel=True, zero=1
    ),
}


def run(name: str, impl: TransformerImpl) -> Prediction:
    configuration = replace(CASES[name], framework=usual("megatron", "ampere", impl))
    return predict(sample_model(name), sample_cluster("a100-80gb"), configuration)


@pytest.mark.parametrize("name", CASES)
def test_own_layers_take_longer_and_keep_more(name: str) -> None:
    engine, own = run(name, "transformer_engine"), run(name, "local")
    assert engine.layer_forward_s < own.layer_forward_s < 5 * engine.layer_forward_s
    assert engine.layer_backward_s < own.layer_backward_s < 5 * engine.layer_backward_s
    assert own.stage_parts["activations"][0] > engine.stage_parts["activations"][0]
    for part in ("weights", "gradients", "optimizer state"):
        assert own.stage_parts[part] == engine.stage_parts[part]


def test_a_gradient_is_added_to_the_sum_by_a_kernel_of_its_own() -> None:
    """The product writes its 2 bytes an element anyway; then these and 4 of the sum are read, and 4 are written."""

    def backward_s(framework: Framework) -> float:
        given = replace(CASES["llama2-13b"], framework=framework)
        return predict(sample_model("llama2-13b"), sample_cluster("a100-80gb"), given).layer_backward_s

    weights = (4 * 5120**2 + 3 * 5120 * 13824) / 4  # of a layer, on each of four ranks
    more = backward_s(MEGATRON_LOCAL) - backward_s(replace(MEGATRON_LOCAL, accumulated_bytes=1.0))
    hbm = machine(sample_cluster("a100-80gb"), "bf16", gpus=CASES["llama2-13b"].world_size).hbm_bytes_per_s
    assert more == pytest.approx((2 + 4 + 4 - 1) * weights / hbm, rel=1e-6)


def test_unfused_attention_leaves_a_buffer_of_its_scores_behind() -> None:
    """And the gradients of scores and of what they are made from are alive at once."""
    own = MEGATRON_LOCAL
    flash = replace(own, implementation=own.implementation.attending(Kernel.FLASH))
    long = replace(CASES["llama2-13b"], seq_length=8 * S)  # else the head's work needs most
    one, other = (
        predict(sample_model("llama2-13b"), sample_cluster("a100-80gb"), replace(long, framework=framework))
        for framework in (own, flash)
    )
    scores = 10 * (8 * S) ** 2 * 2  # ten heads a rank
    inside = one.stage_parts["working set"][0] - other.stage_parts["working set"][0]
    assert 2 * scores < inside < 4 * scores


def test_a_gpu_without_flash_attention_changes_transformer_engine_only() -> None:
    assert usual("megatron", "hopper") == MEGATRON
    assert usual("megatron", "volta").implementation.attention.kernel == "fused_softmax"
    assert usual("megatron", "volta", "local") == usual("megatron", "hopper", "local") == MEGATRON_LOCAL
