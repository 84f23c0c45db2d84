"""Scripts of verl: what is read of them, the phases of the step that they start, and that written plans come back."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symconfig.api import existing
from symconfig.cli.main import main
from symconfig.descriptor.load import load_model
from symconfig.descriptor.tuning import Lengths
from symconfig.graph.model import parameters
from symconfig.plans.file import parse_plan
from symconfig.plans.plan import Plan
from symconfig.render import targets
from symconfig.render.rl import verl
from symconfig.report.audit import headline
from symconfig.runs.rl.phases import GAPS
from symconfig.solve.lengths import quantiles
from tests.existing.audit.verl_scripts import MEGATRON, audited, of_verl, phases
from tests.runs.rl.support import planned

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


@pytest.mark.parametrize("size", ["num_prompts_per_step", "num_generations_per_prompt"])
def test_a_size_that_is_null_is_named_and_the_run_is_not_said_to_run(size: str, tmp_path: Path) -> None:
    text = Path(__file__).with_name("cases").joinpath("nemo_rl.yaml").read_text(encoding="utf-8")
    script = tmp_path / "grpo.yaml"
    script.write_text(re.sub(f"{size}: \\d+", f"{size}: null", text), encoding="utf-8")
    found = existing.audit(script, cluster="h100", plan=False)
    assert [(problem.field, problem.line) for problem in found.unpredicted] == [(f"grpo.{size}", 1)]
    assert headline(found) == "nothing is predicted; no problem was found"


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


WRITTEN = {"verl": {"tp": "2", "recompute": "none"}, "verl-fsdp": {"instances": "2", "mbs": "2"}}


@pytest.mark.parametrize(
    "changed", [{}, {"reference": False}, {"updates": 1, "epochs": 2}, {"lora": {"r": 8}}, {"reward_model": {}},
                {"algorithm": "ppo", "critic": "llama3.2-3b"}],
)  # fmt: skip
@pytest.mark.parametrize("target", WRITTEN)
def test_what_is_planned_and_written_for_verl_comes_back(target: str, changed: dict[str, Any]) -> None:
    """The phases of a plan are those of the script that it becomes."""
    comes_back(target, {"pp": "1", "cp": "1", "mbs": "1..2"} | WRITTEN[target], changed)


@pytest.mark.parametrize(
    "pins", [{"tp": "2", "vpp": "1", "layout": "equal"}, {"tp": "2", "vpp": "4"}, {"tp": "1", "vpp": "2"}]
)
@pytest.mark.parametrize("updates", [2, 8])
def test_stages_take_as_many_micro_batches_as_the_script_makes(pins: dict[str, str], updates: int) -> None:
    """A search has batches that every number of replicas divides; a program makes as few micro-batches as it can."""
    comes_back("verl", {"pp": "2", "cp": "1", **pins}, {"updates": updates})


@pytest.mark.parametrize(
    "pins", [{"recompute": "full", "pp": "1"}, {"recompute": "selective:core_attn", "tp": "2", "pp": "1"}]
)
def test_a_critic_computes_again_what_its_plan_has(pins: dict[str, str]) -> None:
    plan = comes_back("verl", pins, {"algorithm": "ppo", "critic": "llama3.2-3b"})
    step, at = plan.rl[0], "critic.megatron.override_transformer_config.recompute_granularity"
    assert f"{at}={step.critic.recompute}" in verl.words(plan)
    assert parse_plan(plan.to_json()).rl == plan.rl


@pytest.mark.parametrize(("named", "fused"), [("Qwen/Qwen3-8B", False), ("meta-llama/Llama-3.1-8B", True)])
def test_kernels_that_neither_script_nor_bridge_fuses_are_counted(named: str, fused: bool, tmp_path: Path) -> None:
    """Megatron-Bridge switches them on for Llama and not for Qwen; apart, an activation is kept beside the gate."""
    words = (f"{MEGATRON}.tensor_model_parallel_size=2", f"actor_rollout_ref.model.path={named}")
    at = f"+{MEGATRON}.override_transformer_config"
    path = tmp_path / "run.sh"

    def update(*more: str) -> Any:
        path.write_text(of_verl(*words, *more, config="ppo_megatron_trainer"))
        return phases(audited(str(path)))["update"]

    plain, told = update(), update(f"{at}.bias_activation_fusion=True", f"{at}.apply_rope_fusion=True")
    layers, intermediate, tokens = 36, 12288, 6144
    kept = 0.0 if fused else layers * tokens * 2 * intermediate / 2 * (1 + GAPS)
    assert plain.bytes - told.bytes == pytest.approx(kept)
    assert (plain.seconds > told.seconds) is not fused


def comes_back(target: str, pins: dict[str, str], changed: dict[str, Any]) -> Plan:
    """Return a plan whose phases are those of the script that it becomes."""
    plan = planned(response_length={"mean": 300.0, "max": 1024}, pins=pins, target=target, **changed)
    arrays: Any = targets()[target].variables(plan)["arrays"]
    words = [word for lines in arrays.values() for (word,) in lines]
    named = plan.model.huggingface_id
    line = " ".join((f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path={named}",
                     *map(shlex.quote, words),
                     f"trainer.nnodes={changed.get('gpus', 8) // 8} trainer.n_gpus_per_node=8"))  # fmt: skip
    line += " reward.reward_model.model_path=meta-llama/Llama-3.1-8B" * ("reward_model" in changed)
    found = existing.audit(line, "h100", prompt_length=100.0, response_length=300.0, plan=False)
    assert not found.findings
    for mine, theirs in zip(plan.rl[0].phases, found.judged.plan.rl[0].phases, strict=True):
        assert (mine.name, mine.bytes) == (theirs.name, pytest.approx(theirs.bytes))
        assert theirs.seconds == pytest.approx(mine.seconds, rel=1e-6)
    mine_, theirs_ = plan.rl[0], found.judged.plan.rl[0]
    assert (mine_.rollout_tp, mine_.memory_share, mine_.tokens_per_gpu, mine_.away) == (
        theirs_.rollout_tp, theirs_.memory_share, theirs_.tokens_per_gpu, theirs_.away)  # fmt: skip
    return plan
