"""Scripts of trainers, and plans for them, are refused by name: only Megatron-LM's and DeepSpeed's are adapted."""

from __future__ import annotations

import re
from typing import Any

import pytest

from symconfig.errors import InputError
from symconfig.existing.adapt.files import adapted
from symconfig.plans.plan import Plan
from tests.sample_plans import sample_plan

SCRIPTS = {
    "verl": "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B trainer.nnodes=1",
    "slime": "python3 train.py --actor-num-gpus-per-node 8 --colocate --hf-checkpoint Qwen3-8B --rollout-batch-size 32",
    "openrlhf": "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-8B --ds.zero_stage 3",
    "trl": "accelerate launch trl/scripts/sft.py --model_name_or_path Qwen/Qwen3-8B --dataset_name d",
    "llamafactory": "llamafactory-cli train --stage sft --model_name_or_path Qwen/Qwen3-8B --finetuning_type full",
    "ms-swift": "megatron sft --model Qwen/Qwen3-8B --tensor_model_parallel_size 2 --micro_batch_size 1",
    "nemo-rl": "uv run examples/run_grpo.py --config grpo_math_1B.yaml policy.model_name=Qwen/Qwen3-8B",
}


def plan(**fields: Any) -> Plan:
    return sample_plan("llama2-13b", tp=2, dp=4, global_batch=32, **fields)


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("backend", ["megatron", "deepspeed"])
def test_a_trainer_s_script_is_refused_by_name(name: str, backend: str) -> None:
    said = re.escape(f"starts a program of {name}, and only scripts of Megatron-LM and DeepSpeed are adapted")
    with pytest.raises(InputError, match=rf"{said}.*symconfig plan JOB.yaml --target {name} --out DIR"):
        adapted(SCRIPTS[name], plan(backend=backend, sequence_parallel=False), {})


@pytest.mark.parametrize(
    "line",
    [
        "torchrun run_recipe.py --recipe llama2_13b_pretrain_config model.seq_length=4096 train.micro_batch_size=1",
        "torchrun run_recipe.py --recipe llama2_13b_pretrain_config",
    ],
)
def test_what_a_recipe_decides_is_left_to_new_files(line: str) -> None:
    with pytest.raises(InputError, match=r"is of Megatron-Bridge.*symconfig render PLAN.json --out DIR"):
        adapted(line, plan(), {})


def test_a_plan_for_a_trainer_is_refused() -> None:
    line = "torchrun pretrain_gpt.py --num-layers 40 --hidden-size 5120"
    with pytest.raises(InputError, match=r"the plan is for a trainer.*symconfig render PLAN.json --out DIR"):
        adapted(line, plan(backend="fsdp", sequence_parallel=False), {})


def test_a_script_of_several_runs_is_refused_with_their_places() -> None:
    line = "torchrun pretrain_gpt.py --num-layers 40 --hidden-size 5120 --micro-batch-size"
    with pytest.raises(InputError, match=r"starts its program several times.*<arguments>:1:10, <arguments>:2:10"):
        adapted(f"{line} 1\n{line} 2\n", plan(), {})
