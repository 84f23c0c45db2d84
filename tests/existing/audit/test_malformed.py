"""Values of trainers' scripts that are malformed, null or not known: each is named, once, and never replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.existing.audit.audit import Audit
from symconfig.report.audit import headline
from tests.existing.audit.support import text
from tests.existing.audit.verl_scripts import MEGATRON, audited, of_verl

WRONG, NEED = "has a wrong value", "need a whole number above zero"
TUNED = "--max_length 2048 --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --bf16 true"
CORE = "--micro_batch_size 1 --global_batch_size 16 --max_length 2048"
OF_MEGATRON = f"actor_rollout_ref.model.lora.rank=32 {MEGATRON}.use_mbridge=True"
# Options of the rank of an adapter, which is asked for without them, and scripts to which words are added.
RANKS = {
    "trl": ("--lora_r {}", f"accelerate launch --num_processes 8 trl/scripts/sft.py --use_peft {TUNED} "
            "--model_name_or_path Qwen/Qwen3-8B"),
    "llamafactory": ("--lora_rank {}", f"FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train --stage sft {TUNED} "
                     "--model_name_or_path Qwen/Qwen3-8B --finetuning_type lora"),
    "swift": ("--lora_rank {}", f"NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --train_type lora {TUNED}"),
    "megatron": ("--lora_rank {}", f"NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --train_type lora {CORE}"),
    "nemo": ("policy.dtensor_cfg.lora_cfg.dim={}", "policy.dtensor_cfg.lora_cfg.enabled=true"),
}  # fmt: skip


def of(words: str, program: str, folder: Path) -> Audit:
    """Return the audit of a program's script with more words."""
    if program == "openrlhf":
        return audited(text("openrlhf_ray.sh").replace("MORE", words))
    if program.startswith("verl"):
        return audited(of_verl(words, config="ppo_megatron_trainer" if program.endswith("megatron") else "ppo_trainer"))
    if program == "slime":
        return audited(text("slime_qwen3.sh").rstrip("\n") + f" {words}\n")
    start = RANKS[program][1]
    if program == "nemo":
        (folder / "grpo.yaml").write_text(text("nemo_rl.yaml"), encoding="utf-8")
        start = f"uv run examples/run_grpo.py --config grpo.yaml {start}"
    (folder / "run.sh").write_text(f"{start} {words}\n", encoding="utf-8")
    return audited(str(folder / "run.sh"))


def said(found: Audit) -> str:
    """Return the single reason why nothing is predicted."""
    assert found.judged is None
    [problem] = found.unpredicted
    return str(problem)


@pytest.mark.parametrize("program", RANKS)
@pytest.mark.parametrize("rank", ["0", "-1", "8.5", "$R"])
def test_a_rank_that_is_none_is_named_and_no_default_is_taken(program: str, rank: str, tmp_path: Path) -> None:
    option = RANKS[program][0]
    reason = said(of(option.format(rank), program, tmp_path))
    assert option.rpartition("{")[0].strip(" =") in reason
    assert (f"(got {rank}, {NEED})" if rank != "$R" else "its value depends on $R") in reason


@pytest.mark.parametrize("program", RANKS)
def test_adapters_of_these_programs_are_predicted(program: str, tmp_path: Path) -> None:
    found = of(RANKS[program][0].format(64), program, tmp_path)
    assert found.judged is not None, found.unpredicted
    adapter = found.judged.run.described.model.adapter
    assert adapter is not None
    assert adapter.r == 64


ALPHAS = {
    "openrlhf": "--ds.lora.rank 32 --ds.lora.alpha {}",
    "verl": "actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.model.lora_alpha={}",
    "verl-megatron": f"{OF_MEGATRON} actor_rollout_ref.model.lora.alpha={{}}",
    "nemo": "policy.dtensor_cfg.lora_cfg.dim=32 policy.dtensor_cfg.lora_cfg.alpha={}",
    "megatron": "--lora_rank 32 --lora_alpha {}",
}


@pytest.mark.parametrize("program", ALPHAS)
@pytest.mark.parametrize("alpha", ["0", "null", "-2"])
def test_an_alpha_that_is_none_is_no_default(program: str, alpha: str, tmp_path: Path) -> None:
    reason = said(of(ALPHAS[program].format(alpha), program, tmp_path))
    got = "nothing" if alpha == "null" else alpha
    assert f"alpha: {WRONG} (got {got}, need a number above zero)" in reason


def test_a_rank_of_zero_is_no_adapter_where_nothing_else_asks_for_one(tmp_path: Path) -> None:
    for program, words in (
        ("openrlhf", "--ds.lora.rank 0 --ds.lora.alpha 0"),
        ("verl", "actor_rollout_ref.model.lora_rank=0 actor_rollout_ref.model.lora_alpha=null"),
    ):
        found = of(words, program, tmp_path)
        assert found.judged is not None, found.unpredicted
        assert found.judged.run.described.model.adapter is None


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("openrlhf", "--rollout.batch_size"),
        ("openrlhf", "--rollout.n_samples_per_prompt"),
        ("openrlhf", "--train.batch_size"),
        ("openrlhf", "--vllm.num_engines"),
        ("openrlhf", "--vllm.gpu_memory_utilization"),
        ("slime", "--rollout-batch-size"),
        ("slime", "--rollout-max-response-len"),
        ("verl", "data.max_response_length="),
        ("verl", "actor_rollout_ref.rollout.n="),
        ("verl", "actor_rollout_ref.rollout.gpu_memory_utilization="),
        ("nemo", "policy.max_total_sequence_length="),
        ("nemo", "grpo.num_prompts_per_step="),
    ],
)
def test_a_size_that_an_unset_variable_says_is_not_called_missing(program: str, words: str, tmp_path: Path) -> None:
    joined = words if words.endswith("=") else f"{words} "
    found = of(f"{joined}$B", program, tmp_path)
    assert found.judged is None
    # NeMo-RL's other lengths refer to its first.
    assert found.unpredicted
    assert {"its value depends on $B" in str(each) for each in found.unpredicted} == {True}


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("openrlhf", "--reward.model_name_or_path x/y"),
        ("openrlhf", "--critic.model_name_or_path x/y"),
        ("verl", "critic.model.path=x/y critic.ppo_max_token_len_per_gpu=8192"),
    ],
)
def test_a_critic_of_a_model_that_is_not_known_is_named(program: str, words: str, tmp_path: Path) -> None:
    advantage = "algorithm.adv_estimator=gae" if program == "verl" else "--algo.advantage.estimator gae"
    assert "the model is not one that is known by its name (got x/y)" in said(
        of(f"{words} {advantage}", program, tmp_path)
    )


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("openrlhf", "--rollout.batch_size 0"),
        ("openrlhf", "--rollout.micro_batch_size 0"),
        ("verl", "actor_rollout_ref.actor.ppo_mini_batch_size=0"),
        ("verl", "actor_rollout_ref.rollout.n=x"),
        ("nemo", "grpo.num_prompts_per_step=0"),
        ("slime", "--n-samples-per-prompt 0"),
        ("megatron", "--lora_rank 0"),
    ],
)
def test_a_verdict_does_not_deny_the_malformed_value_above_it(program: str, words: str, tmp_path: Path) -> None:
    found = of(words, program, tmp_path)
    assert WRONG in said(found)
    verdict = headline(found)
    assert verdict.startswith("nothing is predicted")
    assert "no problem was found" not in verdict
