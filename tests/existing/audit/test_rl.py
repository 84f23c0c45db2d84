"""Scripts of reinforcement learning: what is read of them, and the phases of the step that they start."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symconfig.api import existing
from symconfig.cli.main import main
from symconfig.descriptor.load import load_model
from symconfig.descriptor.rl import Lengths
from symconfig.existing.launch.read import read
from symconfig.graph.count import parameters
from symconfig.report.audit import headline
from symconfig.solve.lengths import quantiles
from tests.existing.audit.verl_scripts import MEGATRON, audited, of_verl, phases

GIB = 2.0**30
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
    assert found.judged is not None
    assert found.reader.gpus == 16
    plan, options = found.judged.plan, found.judged.plan.best.options
    degrees = plan.best.parallel
    assert (degrees.tp, degrees.pp, degrees.dp) == (2, 2, 4)
    assert (options.sequence_parallel, options.zero_stage, options.recompute.granularity) == (True, 1, "full")
    rl = plan.job.rl
    assert rl is not None
    assert (rl.prompts, rl.samples, rl.updates, rl.longest, rl.tokens_per_gpu) == (256, 8, 4, 4096, 6144)
    assert plan.rl[0].away == ("weights", "optimizer state")
    held = phases(found)["generation"].holds
    assert held["engine: weights, keys and values"] == pytest.approx(0.4 * plan.cluster.gpu.memory_bytes.value)
    assert "actor's weights" not in held


@pytest.mark.parametrize(("more", "layers"), [("", 0), ("actor_rollout_ref.model.mtp.enable=True", 1)])
def test_verl_builds_layers_of_further_predictions_where_it_is_told_to(more: str, layers: int) -> None:
    parted = f"{MEGATRON}.tensor_model_parallel_size=8 {MEGATRON}.expert_model_parallel_size=16"
    parted += f" {MEGATRON}.expert_tensor_parallel_size=1 actor_rollout_ref.rollout.tensor_model_parallel_size=8"
    found = audited(of_verl(parted, more, config="ppo_megatron_trainer"), model="glm-4.5-air", gpus=64)
    assert found.judged is not None, found.unpredicted
    assert found.judged.run.described.model.num_nextn_predict_layers == layers


@pytest.mark.parametrize(("value", "wanted"), [("fp32", []), ("float32", ["refused-value"])])
def test_values_that_megatron_core_does_not_know_are_found(value: str, wanted: list[str]) -> None:
    word = f"+{MEGATRON}.override_transformer_config.moe_router_dtype={value}"
    found = existing.audit(of_verl(FIXED.replace("=3", "=1"), word, config="ppo_megatron_trainer"))
    assert [finding.rule for finding in found.findings] == wanted


def test_fsdp_workers_keep_sixteen_bytes_of_a_parameter_in_shards() -> None:
    """Weights, gradients and two moments in fp32 over all ranks (arXiv 2304.11277); no gradients in other phases."""
    count = parameters(load_model("qwen3-8b")).total
    found = phases(audited(of_verl()))
    held = found["update"].holds
    states = [held[f"actor's {name}"] for name in ("weights", "gradients", "optimizer state")]
    assert states == pytest.approx([4 * count / 16, 4 * count / 16, 8 * count / 16], rel=1e-3)
    assert "actor's gradients" not in found["generation"].holds
    assert "reference" not in found["reference"].holds  # it comes layer by layer from the host


def test_copies_of_shards_hold_more() -> None:
    whole = phases(audited(of_verl()))["update"].holds
    copies = phases(audited(of_verl("actor_rollout_ref.actor.fsdp_config.fsdp_size=8")))["update"].holds
    assert copies["actor's optimizer state"] == pytest.approx(2 * whole["actor's optimizer state"], rel=1e-3)


def test_what_a_pass_gathers_is_beside_a_forward() -> None:
    """Embedding and head are FSDP's root, whole from the first layer to the last: 2 x 151,936 x 4,096 in 16 bits."""
    found = audited(of_verl())
    assert found.judged is not None
    run = found.judged.plan.best.predicted.memory
    shards = 2 * parameters(load_model("qwen3-8b")).total / 16
    assert run["weights"] - shards == pytest.approx(2 * 2 * 151936 * 4096, rel=0.01)
    small = audited(of_verl("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=4096"))
    assert phases(small)["log-probabilities"].holds["forward"] > run["weights"] - shards


def test_fsdp_offloads_by_its_own_policy_to_the_host() -> None:
    """Shards, gradients and moments stay there for good, 16 bytes of a parameter: no GPU holds them in any phase."""
    found = audited(of_verl("actor_rollout_ref.actor.fsdp_config.offload_policy=True"))
    assert not any("actor's" in name for phase in phases(found).values() for name in phase.holds)
    assert found.judged is not None
    count = parameters(load_model("qwen3-8b")).total
    assert found.judged.plan.rl[0].host_bytes == pytest.approx(16 * count / 16, rel=0.15)


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


def test_an_engine_of_its_own_has_gpus_of_its_own() -> None:
    found = audited(of_verl("rollout.nnodes=1 rollout.n_gpus_per_node=4"))
    assert found.reader.gpus == 20
    assert found.judged is not None
    step, rl = found.judged.plan.rl[0], found.judged.plan.job.rl
    assert rl is not None
    assert (step.rollout_gpus, rl.placement, found.judged.plan.best.parallel.world_size) == (4, "split", 16)


def test_a_critic_is_trained_where_the_advantage_asks_for_one() -> None:
    text = of_verl("critic.model.path=Qwen/Qwen3-4B critic.ppo_max_token_len_per_gpu=8192").replace("=grpo", "=gae")
    found = audited(text)
    assert {"values", "update of the critic"} <= phases(found).keys()
    held = phases(found)["update of the critic"].holds["critic's optimizer state"]
    assert held == pytest.approx(8 * parameters(load_model("qwen3-4b").of_values).total / 16, rel=1e-4)


def test_a_plan_that_is_as_fast_as_the_run_takes_as_long() -> None:
    found = audited(of_verl(""))
    assert found.judged is not None
    assert found.judged.fits
    way: Any = (None,)
    same = replace(found, better=found.judged.plan, way=way)
    assert " s a step is possible (-0.0 %)" in headline(same) or "best plan already" in headline(same)
    halved = replace(found.judged.plan.rl[0], step_s=found.judged.plan.step_s / 2)
    faster = replace(same, better=replace(found.judged.plan, rl=(halved,)))
    assert " s a step is possible (-50.0 %)" in headline(faster)


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
    assert padded.judged is not None
    assert packed.judged is not None
    assert padded.judged.plan.best.batch.seq_length == 4 * 4096
    assert 4 * 1200 < packed.judged.plan.best.batch.seq_length < 4 * 4096
    draws = np.random.default_rng(0).choice(quantiles(Lengths(mean=900.0, max=3072)), (20_000, 4))
    longest = 300.0 + draws.max(axis=1).mean()  # of four sequences, all of which are padded to it
    for found, each in ((padded, longest), (packed, 1200.0)):
        assert found.judged is not None
        step, best = found.judged.run.step, found.judged.plan.best
        assert step is not None
        assert best.batch.num_microbatches == 64 * 8 / 4 / 16
        assert step.fill * best.batch.seq_length == pytest.approx(4 * each, rel=0.01)
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


def test_a_better_layout_is_compared_step_by_step() -> None:
    small = "trainer.nnodes=1 trainer.n_gpus_per_node=2 actor_rollout_ref.rollout.tensor_model_parallel_size=1"
    text = of_verl("actor_rollout_ref.model.path=Qwen/Qwen3-0.6B", small)
    found = existing.audit(text, "h100", prompt_length=300, response_length=900)
    assert found.better is not None
    assert found.judged is not None
    assert found.gain == pytest.approx(1 - found.better.rl[0].step_s / found.judged.plan.rl[0].step_s)


def test_what_a_branch_adds_to_an_array_of_overrides_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    more = f'if python3 -c "import x"; then ACTOR+=({MEGATRON}.tensor_model_parallel_size=2); fi\npython3 -m'
    path.write_text(of_verl(config="ppo_megatron_trainer").replace("python3 -m", more, 1))
    found = audited(str(path))
    assert [problem.field for problem in found.unpredicted] == [f"{MEGATRON}.tensor_model_parallel_size"]
    assert {item.name for item in found.reading.settings} >= {"actor_rollout_ref.actor.ppo_mini_batch_size"}


def test_a_script_for_several_kinds_of_accelerators_is_read_for_gpus(tmp_path: Path) -> None:
    """verl's examples ask whether Ascend's torch is there; bash takes a list behind `:-` as it is."""
    path = tmp_path / "run.sh"
    head = (
        "DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}\n"
        'FILES=${FILES:-["/data/train.parquet"]}\n'
        'case "${DEVICE}" in gpu) TP=4 ;; npu) TP=8 ;; *) exit 1 ;; esac\nset -x'
    )
    text = of_verl("actor_rollout_ref.rollout.tensor_model_parallel_size=$TP", "data.val_files=$FILES")
    path.write_text(text.replace("set -x", head))
    found = audited(str(path))
    assert found.judged is not None
    assert found.judged.plan.rl[0].rollout_tp == 4
    said = {setting.name: setting.values[-1].text for setting in found.reading.settings if setting.values}
    assert "train.parquet" in said["data.val_files"]


def test_verls_overrides_are_read_under_their_own_keys() -> None:
    reading = read(of_verl("actor_rollout_ref.rollout.n=4"))
    names = [setting.name for setting in reading.settings]
    assert len(set(names)) == len(names)
    said = {setting.name: setting.values[-1].text for setting in reading.settings if setting.values}
    assert said["actor_rollout_ref.rollout.n"] == "4"
    assert said["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] == "6144"


TUNING = """torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer \\
    data.train_files=train.parquet data.train_batch_size=128 data.max_length=2048 data.max_token_len_per_gpu=8192 \\
    model.path=Qwen/Qwen3-8B MORE
"""


def test_fine_tuning_by_verl_is_read_with_its_own_defaults() -> None:
    """Micro-batches have as many of the longest sequences as their tokens have room for, on all ranks of a sequence."""
    found = existing.audit(TUNING.replace("MORE", "engine.ulysses_sequence_parallel_size=2 model.lora_rank=8"), "h100")
    assert found.judged is not None, found.unpredicted
    best = found.judged.plan.best
    assert not found.findings
    assert (best.parallel.dp, best.parallel.cp, best.batch.micro, best.batch.global_) == (4, 2, 8, 128)
    assert best.batch.seq_length == 2048
    assert best.options.recompute.granularity == "full"
    adapter = found.judged.plan.model.adapter
    assert adapter is not None
    assert (adapter.r, adapter.lora_alpha) == (8, 16)


@pytest.mark.parametrize(
    ("program", "more", "why"),
    [
        ("sft_trainer", "engine=megatron", "workers of this kind is not predicted"),
        ("fsdp_sft_trainer", "", r"first trainer of fine-tuning, with keys of its own \(before 0.8\)"),
    ],
)
def test_fine_tuning_by_verl_that_is_not_predicted_has_one_reason(program: str, more: str, why: str) -> None:
    found = existing.audit(TUNING.replace("sft_trainer", program).replace("MORE", more), "h100")
    (problem,) = found.unpredicted
    assert re.search(why, str(problem))
