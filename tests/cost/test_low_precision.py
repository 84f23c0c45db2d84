"""What training in low precision keeps: inputs of matmuls, copies of weights; and what experts keep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.cost.framework import Framework
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.frameworks.behaviour import changed
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.solve.predict import predict
from tests.sample_configurations import configuration

LAYERS, TOKENS, HIDDEN, WIDTH, HEADS = 32, 4096, 4096, 14336, 6144  # of Llama 3.1 8B


def memory(
    precision: str, framework: Framework = MEGATRON, model: str = "llama3.1-8b", cluster: str = "h100"
) -> dict[str, float]:
    plan = configuration(
        dp=8, micro=1, global_batch=64, seq_length=TOKENS, precision=precision, zero=1, framework=framework
    )
    return predict(load_model(model), load_cluster(cluster), plan).predicted.memory


def test_inputs_that_only_matmuls_need_are_kept_in_their_precision() -> None:
    """Both norms' results and the MLP's hidden state, one byte less each; the attention's result stays as it is."""
    less = memory("bf16")["activations"] - memory("fp8")["activations"]
    assert less == pytest.approx(LAYERS * TOKENS * (2 * HIDDEN + WIDTH))


def test_a_framework_that_keeps_inputs_in_16_bits_saves_nothing() -> None:
    assert memory("fp8", DEEPSPEED)["activations"] == memory("bf16", DEEPSPEED)["activations"]


def test_low_precision_copies_of_all_weights_but_the_vocabulary() -> None:
    copies = memory("fp8")["weights"] - memory("bf16")["weights"]
    linear = LAYERS * (HIDDEN * HEADS + HIDDEN * HIDDEN + 3 * HIDDEN * WIDTH)
    assert copies == pytest.approx(2 * linear, rel=1e-3)


@pytest.mark.parametrize(("precision", "copies"), [("fp8", 1.0), ("mxfp8", 2 * (1 + 1 / 32))])
def test_units_that_read_either_way_need_one_copy_where_one_scale_is_of_all(precision: str, copies: float) -> None:
    linear = LAYERS * (HIDDEN * HEADS + HIDDEN * HIDDEN + 3 * HIDDEN * WIDTH)
    more = memory(precision, cluster="b200")["weights"] - memory("bf16", cluster="b200")["weights"]
    assert more == pytest.approx(copies * linear, rel=1e-3)


@pytest.mark.parametrize("cluster", ["h100", "b200"])
def test_frozen_weights_in_low_precision_only_have_one_copy(cluster: str) -> None:
    """Tables stay in 16 bits; Llama-2-70B on one H200 would not fit with more (MLPerf 4.1 and 5.0)."""
    gathered = replace(MEGATRON, quantised_weights=True)
    model = load_model("llama2-70b-lora")
    linear = 80 * (8192 * 10240 + 8192 * 8192 + 3 * 8192 * 28672)
    less = [memory(precision, gathered, model.name, cluster)["weights"] for precision in ("bf16", "fp8")]
    assert less[0] - less[1] == pytest.approx(linear, rel=1e-3)


def test_weights_in_low_precision_only_need_no_copies() -> None:
    gathered = replace(MEGATRON, quantised_weights=True)
    assert memory("fp8", gathered)["weights"] == pytest.approx(memory("bf16")["weights"])


def test_attention_in_8_bits_keeps_8_bits_of_what_it_reads_and_writes() -> None:
    """The projection keeps the result in 16 bits, as before; queries, keys and values are kept in 8 only."""
    how = replace(MEGATRON, implementation=changed(MEGATRON.implementation, fp8_attention=True))
    less = memory("bf16")["activations"] - memory("bf16", how)["activations"]
    assert less == pytest.approx(LAYERS * TOKENS * (HEADS - HIDDEN))


def test_an_activation_that_stores_8_bits_keeps_half_of_its_inputs() -> None:
    how = replace(MEGATRON, implementation=changed(MEGATRON.implementation, fp8_activation_store=True))
    less = memory("bf16")["activations"] - memory("bf16", how)["activations"]
    assert less == pytest.approx(LAYERS * TOKENS * 2 * WIDTH)


def test_a_precision_keeps_the_framework_own_gradients() -> None:
    narrow = replace(MEGATRON, bytes=replace(MEGATRON.bytes, gradient=2.0))
    assert memory("fp8", narrow)["gradients"] == memory("bf16")["gradients"] / 2


def test_results_of_experts_are_kept_where_they_are_weighted_last() -> None:
    last = replace(MEGATRON, implementation=changed(MEGATRON.implementation, weighted_experts=False))
    name = "qwen3-30b-a3b"
    model = load_model(name)
    slots = TOKENS * model.experts.num_experts_per_tok
    more = memory("bf16", last, name)["activations"] - memory("bf16", model=name)["activations"]
    assert more == pytest.approx(2 * model.num_hidden_layers * slots * model.hidden_size)
