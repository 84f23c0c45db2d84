"""Scripts of reinforcement learning: what is read of them, and the phases of the step that they start."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from symconfig.api import existing
from symconfig.cli.main import main
from symconfig.descriptor.load import load_model
from symconfig.descriptor.tuning import Lengths
from symconfig.graph.model import parameters
from symconfig.solve.lengths import quantiles
from tests.existing.audit.verl_scripts import MEGATRON, audited, of_verl, phases

FIXED = " ".join(
    [
        "actor_rollout_ref.actor.use_dynamic_bsz=False actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3",
        *(f"actor_rollout_ref.{name}.log_prob_micro_batch_size_per_gpu=3" for name in ("rollout", "ref")),
    ]
)
ULYSSES = "actor_rollout_ref.actor.ulysses_sequence_parallel_size=4"


@pytest.mark.parametrize(
    ("more", "config", "wanted"),
    [
        (FIXED, "ppo_trainer", []),  # 2,048 samples on 16 GPUs
        (FIXED, "ppo_megatron_trainer", ["samples-over-gpus"]),  # 16 replicas of micro-batches of 3
        (f"{FIXED} {MEGATRON}.tensor_model_parallel_size=4 {MEGATRON}.context_parallel_size=4", "ppo_megatron_trainer",
         ["samples-over-gpus"]),
        (f"{ULYSSES} data.train_batch_size=255 actor_rollout_ref.actor.ppo_mini_batch_size=51", "ppo_trainer", []),
        ("data.train_batch_size=255 actor_rollout_ref.actor.ppo_mini_batch_size=51", "ppo_trainer",
         ["mini-batch-over-replicas"]),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=60", "ppo_trainer", ["mini-batches-left-over"]),
        (f"{ULYSSES} actor_rollout_ref.model.use_remove_padding=False", "ppo_trainer", ["padded-sequences-split"]),
    ],
)  # fmt: skip
def test_batches_that_verl_cannot_share_are_errors(more: str, config: str, wanted: list[str]) -> None:
    assert [finding.rule for finding in existing.audit(of_verl(more, config=config)).findings] == wanted


def test_megatron_workers_of_verl() -> None:
    found = audited(of_verl(
        f"{MEGATRON}.tensor_model_parallel_size=2", f"+{MEGATRON}.pipeline_model_parallel_size=2",
        f"{MEGATRON}.param_offload=True", f"{MEGATRON}.optimizer_offload=True",
        f"+{MEGATRON}.override_transformer_config.recompute_granularity=full",
        f"+{MEGATRON}.override_transformer_config.recompute_method=uniform",
        f"+{MEGATRON}.override_transformer_config.recompute_num_layers=1", config="ppo_megatron_trainer.yaml",
    ))  # fmt: skip
    assert found.reader.gpus == 16
    plan, options = found.judged.plan, found.judged.plan.best.configuration
    degrees = plan.best.configuration
    assert (degrees.tp, degrees.pp, degrees.dp) == (2, 2, 4)
    assert (options.sequence_parallel, options.zero_stage, options.recompute) == (True, 1, "full")
    rl = plan.job.rl
    assert (rl.prompts, rl.samples, rl.updates, rl.longest, rl.tokens_per_gpu) == (256, 8, 4, 4096, 6144)
    assert plan.rl[0].away == ("weights", "optimizer state")
    held = phases(found)["generation"].holds
    assert held["engine: weights, keys and values"] == pytest.approx(0.4 * plan.cluster.gpu.memory_bytes.value)
    assert "actor's weights" not in held


def test_fsdp_workers_keep_sixteen_bytes_of_a_parameter_in_shards() -> None:
    """Weights, gradients and two moments in fp32 over all ranks (arXiv 2304.11277); no gradients in other phases."""
    count = parameters(load_model("qwen3-8b")).total
    found = phases(audited(of_verl()))
    held = found["update"].holds
    states = [held[f"actor's {name}"] for name in ("weights", "gradients", "optimizer state")]
    assert states == pytest.approx([4 * count / 16, 4 * count / 16, 8 * count / 16], rel=1e-3)
    assert "actor's gradients" not in found["generation"].holds
    assert "reference" not in found["reference"].holds  # it comes layer by layer from the host


def test_what_a_pass_gathers_is_beside_a_forward() -> None:
    """Embedding and head are FSDP's root, whole from the first layer to the last: 2 x 151,936 x 4,096 in 16 bits."""
    found = audited(of_verl())
    run = found.judged.plan.best.predicted.memory
    shards = 2 * parameters(load_model("qwen3-8b")).total / 16
    assert run["weights"] - shards == pytest.approx(2 * 2 * 151936 * 4096, rel=0.01)
    small = audited(of_verl("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=4096"))
    assert phases(small)["log-probabilities"].holds["forward"] > run["weights"] - shards


@pytest.mark.parametrize("workers", ["fsdp", "megatron"])
def test_adapters_are_trained_alone(workers: str) -> None:
    """Of rank 32 beside each linear layer of Qwen3-8B: r (in + out) of 36 layers (PEFT), with one beside q, k and v
    and one beside gate and up for Megatron-Bridge's. The actor without them is the reference."""
    rank, parts = (
        32,
        ((4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096), (4096, 12288), (4096, 12288), (12288, 4096)),
    )
    more, config = f"actor_rollout_ref.model.lora_rank={rank}", "ppo_trainer"
    if workers == "megatron":
        parts = ((4096, 6144), (4096, 4096), (4096, 24576), (12288, 4096))
        more, config = f"actor_rollout_ref.model.lora.rank={rank}", "ppo_megatron_trainer"
    trained = 36 * rank * sum(each + other for each, other in parts)
    found = phases(audited(of_verl(more, config=config)))
    held = found["update"].holds
    assert held["actor's gradients"] == pytest.approx(trained * 4 / (16 if workers == "fsdp" else 1), rel=1e-6)
    assert "reference" not in {name for phase in found.values() for name in phase.holds}
    assert found["reference"].holds["actor's weights"] == held["actor's weights"]


def test_a_critic_is_trained_where_the_advantage_asks_for_one() -> None:
    text = of_verl("critic.model.path=Qwen/Qwen3-4B critic.ppo_max_token_len_per_gpu=8192").replace("=grpo", "=gae")
    found = audited(text)
    assert {"values", "update of the critic"} <= phases(found).keys()
    held = phases(found)["update of the critic"].holds["critic's optimizer state"]
    assert held == pytest.approx(8 * parameters(load_model("qwen3-4b").of_values).total / 16, rel=1e-4)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("actor_rollout_ref.model.lora_adapter_path=/adapters", "stand in a folder, which is not read"),
        ("actor_rollout_ref.rollout.name=trtllm", "this engine is not predicted"),
        ("actor_rollout_ref.actor.strategy=veomni", "workers of this kind are not predicted"),
        ("actor_rollout_ref.model.path=my/model", "the model is not one that is known by its name"),
        ("actor_rollout_ref.actor.use_dynamic_bsz=False", "says what a micro-batch holds"),
        ("actor_rollout_ref.rollout.gpu_memory_utilization=0.05", "no room for its weights"),
    ],
)
def test_what_is_not_predicted_has_one_reason(more: str, why: str) -> None:
    found = audited(of_verl(more))
    assert found.judged is None
    assert [why in problem.what for problem in found.unpredicted] == [True]


def test_a_micro_batch_of_padded_sequences_has_as_much_of_each_as_of_its_longest() -> None:
    fixed = ("actor_rollout_ref.actor.use_dynamic_bsz=False actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
             "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 "
             "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 ")  # fmt: skip
    padded = audited(of_verl(fixed, "actor_rollout_ref.model.use_remove_padding=False"))
    packed = audited(of_verl(fixed, "actor_rollout_ref.model.use_remove_padding=True"))
    assert padded.judged.plan.best.configuration.seq_length == 4 * 4096
    assert 4 * 1200 < packed.judged.plan.best.configuration.seq_length < 4 * 4096
    draws = np.random.default_rng(0).choice(quantiles(Lengths(mean=900.0, max=3072)), (20_000, 4))
    longest = 300.0 + draws.max(axis=1).mean()  # of four sequences, all of which are padded to it
    for found, each in ((padded, longest), (packed, 1200.0)):
        step, best = found.judged.run.step, found.judged.plan.best
        assert best.configuration.num_microbatches == 64 * 8 / 4 / 16
        assert step.fill * best.configuration.seq_length == pytest.approx(4 * each, rel=0.01)
    assert phases(padded)["update"].seconds > 1.25 * phases(packed)["update"].seconds


def test_a_step_is_shown_and_in_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(of_verl())
    words = ["audit", str(path), "--cluster", "h100", "--no-plan", "--response-length", "900", "--prompt-length", "300"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "read as verl with fsdp workers 0.9.1" in shown
    assert "weights to the engine" in shown
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [phase["name"] for phase in data["step"]["phases"]][:2] == ["generation", "weights to the engine"]
    assert data["step"]["trainer"] == "verl"
