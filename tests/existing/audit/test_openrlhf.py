"""OpenRLHF's scripts: what is read of them in either spelling, and the phases of what they start."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.api import existing
from symconfig.descriptor.load import load_model
from symconfig.existing.audit.audit import Audit
from symconfig.graph.count import parameters
from symconfig.render import openrlhf
from tests.existing.audit.verl_scripts import audited, phases
from tests.runs.rl.support import planned

COUNT = parameters(load_model("qwen3-8b")).total
RAY = """#!/bin/bash
python3 -m openrlhf.cli.train_ppo_ray \\
   --ref.num_nodes 1 --ref.num_gpus_per_node 8 --actor.num_nodes 1 --actor.num_gpus_per_node 8 \\
   --vllm.num_engines 4 --vllm.tensor_parallel_size 2 --train.colocate_all --vllm.enable_sleep --ds.enable_sleep \\
   --vllm.gpu_memory_utilization 0.5 --actor.model_name_or_path Qwen/Qwen3-8B --reward.remote_url reward.py \\
   --train.batch_size 256 --train.micro_batch_size 2 --rollout.batch_size 128 --rollout.micro_batch_size 4 \\
   --rollout.n_samples_per_prompt 8 --data.max_len 4096 --rollout.max_new_tokens 3072 --ds.zero_stage 3 \\
   --algo.advantage.estimator group_norm --actor.gradient_checkpointing_enable --ds.packing_samples MORE
"""
OLD = """#!/bin/bash
python3 -m openrlhf.cli.train_ppo_ray \\
   --ref_num_nodes 1 --ref_num_gpus_per_node 8 --actor_num_nodes 1 --actor_num_gpus_per_node 8 \\
   --vllm_num_engines 4 --vllm_tensor_parallel_size 2 --colocate_all_models --vllm_enable_sleep \\
   --deepspeed_enable_sleep --vllm_gpu_memory_utilization 0.5 --pretrain Qwen/Qwen3-8B --remote_rm_url reward.py \\
   --train_batch_size 256 --micro_train_batch_size 2 --rollout_batch_size 128 --micro_rollout_batch_size 4 \\
   --n_samples_per_prompt 8 --prompt_max_len 1024 --generate_max_len 3072 --zero_stage 3 --bf16 \\
   --advantage_estimator group_norm --gradient_checkpointing --packing_samples
"""
TUNED = """#!/bin/bash
read -r -d '' training_commands <<EOT
openrlhf.cli.PROGRAM \\
   --data.max_len 2048 --train.batch_size 64 --train.micro_batch_size 2 --ds.zero_stage 3 \\
   --model.model_name_or_path Qwen/Qwen3-8B --ds.packing_samples --model.gradient_checkpointing_enable MORE
EOT
if [[ ${1} != "slurm" ]]; then
    deepspeed --num_gpus 8 --module $training_commands
fi
"""


def ray(*more: str) -> Audit:
    return audited(RAY.replace("MORE", " ".join(more)))


def tuned(program: str, *more: str) -> Audit:
    return audited(TUNED.replace("PROGRAM", program).replace("MORE", " ".join(more)))


def test_both_spellings_of_its_options_are_one_run() -> None:
    new, old = ray(), audited(OLD)
    assert new.judged is not None
    assert old.judged is not None
    assert not new.findings
    plan, rl = new.judged.plan, new.judged.plan.job.rl
    assert rl is not None
    assert (rl.prompts, rl.samples, rl.updates, rl.batch, rl.longest) == (128, 8, 4, 256, 4096)
    assert (plan.best.configuration.zero_stage, plan.best.configuration.num_microbatches) == (3, 256 / 2 / 8)
    assert plan.rl == old.judged.plan.rl
    assert plan.rl[0].away == ("optimizer state",)


def test_zero_3_keeps_sixteen_bytes_of_a_parameter_in_shards_and_the_reference_two() -> None:
    """arXiv:1910.02054: 2 of weights, 2 of gradients, 12 of fp32 weights and moments; the reference has weights."""
    found = ray()
    held = phases(found)["update"].holds
    assert held["actor's optimizer state"] == pytest.approx(12 * COUNT / 8, rel=1e-3)
    assert held["actor's gradients"] == pytest.approx(2 * COUNT / 8, rel=1e-3)
    assert held["reference"] == held["actor's weights"]
    assert "actor's optimizer state" not in phases(found)["generation"].holds
    assert "reference" not in phases(ray("--ref.offload"))["update"].holds
    assert "reference" in phases(ray("--ref.offload --ds.zero_stage 2 --train.micro_batch_size 1"))["update"].holds


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ({}, "--reward.remote_url x.py"),
        (
            {"reward_model": {"model": "qwen3-4b"}},
            "--reward.model_name_or_path Qwen/Qwen3-4B --reward.num_nodes 1 --reward.num_gpus_per_node 8",
        ),
    ],
)
def test_a_plan_written_for_it_comes_back(rewards: dict[str, Any], said: str) -> None:
    step = {"tokens_per_gpu": 4096, "response_length": {"mean": 300.0, "max": 1024}}
    plan = planned("qwen3-8b", target="openrlhf", **step, **rewards)
    line = " ".join((
        "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-8B --actor.num_nodes 1",
        f"--actor.num_gpus_per_node 8 --ref.num_nodes 1 --ref.num_gpus_per_node 8 {said}",
        *openrlhf.words(plan),
    ))  # fmt: skip
    found = existing.audit(line, "h100", prompt_length=100.0, response_length=300.0, plan=False)
    assert not [finding.rule for finding in found.findings if finding.severity == "error"]
    assert found.judged is not None, found.unpredicted
    again = found.judged.plan
    assert (again.best.configuration.zero_stage, again.best.configuration.dp) == (plan.best.configuration.zero_stage, 8)
    mine, theirs = plan.rl[0], again.rl[0]
    assert (theirs.rollout_tp, theirs.memory_share, theirs.away) == (mine.rollout_tp, mine.memory_share, mine.away)
    for one, other in zip(mine.phases, theirs.phases, strict=True):
        assert (one.name, one.bytes) == (other.name, pytest.approx(other.bytes, rel=1e-3))


def test_roles_with_gpus_of_their_own_work_beside_each_other() -> None:
    """Engines, critic and actor are three pools of 8; the engine waits for the update unless it is asynchronous."""
    apart = RAY.replace("--train.colocate_all", "--train.colocate_actor_ref").replace("group_norm", "gae")
    text = apart.replace("MORE", "--critic.num_nodes 1 --critic.num_gpus_per_node 8")
    found = audited(text)
    assert found.reader.gpus == 24
    by_name = phases(found)
    assert "critic's optimizer state" not in by_name["update"].holds
    assert not {name for name in by_name["update of the critic"].holds if name.startswith("actor's")}
    assert found.judged is not None
    step = found.judged.plan.rl[0]
    of_critic = sum(phase.seconds for phase in step.phases if phase.name in ("values", "update of the critic"))
    of_actor = sum(phase.seconds for phase in step.phases[1:]) - of_critic
    assert step.step_s == pytest.approx(step.phases[0].seconds + max(of_actor, of_critic))
    beside = audited(text.replace("--vllm.enable_sleep", "--train.async_enable"))
    assert beside.judged is not None
    assert beside.judged.plan.rl[0].step_s == pytest.approx(max(step.phases[0].seconds, of_actor, of_critic))


def held(found: Audit, name: str) -> Any:
    assert found.judged is not None, found.unpredicted
    return next(phase for phase in found.judged.plan.tuned[0].phases if phase.name == name).holds


def test_pairs_are_twice_as_many_sequences_and_a_reference_reads_them() -> None:
    dpo, sft = tuned("train_dpo"), tuned("train_sft")
    assert dpo.judged is not None
    assert sft.judged is not None
    assert (dpo.judged.plan.best.configuration.micro, sft.judged.plan.best.configuration.micro) == (4, 2)
    assert (
        dpo.judged.plan.best.configuration.num_microbatches
        == sft.judged.plan.best.configuration.num_microbatches
        == 64 / 2 / 8
    )
    assert held(dpo, "update")["reference"] == held(dpo, "update")["weights"]
    assert "reference" not in held(tuned("train_dpo", "--ref.offload"), "update")
    assert [phase.name for phase in sft.judged.plan.tuned[0].phases] == ["update"]
    # fp32 logits and their gradient: 8 bytes for each of 4 x 2,048 tokens; no variable holds them until that is copied
    # (runs/rl/test_memory.py counts them).
    logits = 8 * 4 * 2048 * 151936
    assert held(dpo, "update")["activations, head and loss"] > logits
