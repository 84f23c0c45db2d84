"""Megatron-DeepSpeed: the model and the degrees are the options', ZeRO is the JSON's."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.load import load_cluster
from symconfig.errors import InputError
from symconfig.existing.recover.deepspeed import run
from symconfig.existing.recover.run import Run
from symconfig.existing.recover.supplied import Supplied
from symconfig.existing.rules.deepspeed import findings
from symconfig.existing.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.solve.predict import predict
from tests.existing.recover.deepspeed_support import reading

A100 = load_cluster("a100-80gb")
LLAMA_70B = (
    "--num-layers=80",
    "--hidden-size=8192",
    "--ffn-hidden-size=28672",
    "--num-attention-heads=64",
    "--num-key-value-heads=8",
    "--seq-length=4096",
    "--max-position-embeddings=4096",
    "--normalization=rmsnorm",
    "--layernorm-epsilon=1e-5",
    "--swiglu",
    "--disable-bias-linear",
    "--use-rotary-position-embeddings",
    "--untie-embeddings-and-output-weights",
    "--attention-dropout=0",
    "--hidden-dropout=0",
    "--vocab-size=32000",
    "--use-flash-attn-v2",
)
LAUNCH = (
    "--deepspeed",
    "--deepspeed_config=ds.json",
    "--zero-stage=1",
    "--tensor-model-parallel-size=8",
    "--pipeline-model-parallel-size=4",
    "--no-query-key-layer-scaling",
    "--data-impl=mmap",
)
CONFIG: dict[str, Any] = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "data_types": {"grad_accum_dtype": "fp32"},
    "zero_optimization": {"stage": 1, "overlap_comm": True},
}


def of(config: dict[str, Any] = CONFIG, *words: str, gpus: int | None = 64) -> Run:
    return run(reading(config, (*LLAMA_70B, *LAUNCH, *words), gpus), A100, Supplied())


def test_model_and_degrees_are_the_options_and_zero_the_json() -> None:
    found = of()
    c = found.configuration
    assert found.described.zoo == "llama2-70b"
    assert (c.degrees.tp, c.degrees.pp, c.degrees.dp, c.micro, c.global_batch, c.zero, c.precision) == (
        8,
        4,
        2,
        1,
        64,
        1,
        "bf16",
    )
    assert c.framework.implementation.attention.kernel == "flash"
    assert not c.framework.engine
    assert (found.options.zero_stage, found.options.grad_bytes) == (1, 4)
    assert 1 < predict(found.described.model, A100, c).predicted.step_s < 1000


def test_sizes_of_the_options_and_of_the_json_must_agree() -> None:
    assert of(CONFIG, "--micro-batch-size=1", "--global-batch-size=64").configuration.global_batch == 64
    with pytest.raises(InputError) as caught:
        of(CONFIG, "--micro-batch-size=2")
    assert "is not what --micro-batch-size says" in str(caught.value)


def test_recompute_and_ulysses() -> None:
    found = of(
        {**CONFIG, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}},
        "--ds-sequence-parallel-size=2",
        "--pipeline-model-parallel-size=1",
        "--checkpoint-activations",
    )
    assert (found.configuration.degrees.cp, found.options.cp_comm, found.configuration.degrees.dp) == (2, "a2a", 4)
    assert found.options.recompute.granularity == "full"
    assert (found.configuration.offload.optimizer, found.options.zero_stage) == (1.0, 3)


def test_what_is_missing_or_cannot_be_predicted_is_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        of({**CONFIG, "train_batch_size": 32}, "--num-experts=2", "4", "--global-batch-size=64", gpus=None)
    text = str(caught.value)
    for said in ("--gpus", "different numbers of experts", "is not what --global-batch-size says"):
        assert said in text


def test_a_single_expert_is_none() -> None:
    assert of(CONFIG, "--num-experts=1").described.model.experts is None


def test_rules_count_the_ranks_of_its_grid() -> None:
    """64 GPUs over tp 8 and pp 4 are two data ranks: 32 microbatches of one sequence each."""

    def told(config: dict[str, Any]) -> set[str]:
        facts = DeepSpeedFacts.of_reading(reading(config, (*LLAMA_70B, *LAUNCH), 64), 64, None)
        return {finding.rule for finding in findings(facts) if finding.severity != "note"}

    assert told({**CONFIG, "gradient_accumulation_steps": 32}) == set()
    assert told({**CONFIG, "gradient_accumulation_steps": 1}) == {"deepspeed-batch-product"}
    assert told({**CONFIG, "zero_optimization": {"stage": 2, "overlap_comm": True}}) == {
        "deepspeed-pipeline-with-zero",
        "deepspeed-stage-mismatch",
    }
