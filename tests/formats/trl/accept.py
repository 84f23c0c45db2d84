"""TRL's own parser of its GRPO script on the words of launch.sh and grpo.yaml, as a rank that torchrun starts, and the
DeepSpeed JSON as Trainer fills it in."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

from accepting import Values, answer, started
from deepspeed_words import of_config, of_trainer
from ranks import as_rank_0
from trl.scripts.grpo import make_parser

_MODULE = ["-m", "trl.scripts.grpo"]


def accept(folder: Path) -> Values:
    words, environment = started(folder, "torchrun", DATASET="prompts", MASTER_ADDR="10.0.0.1", MASTER_PORT="29517")
    nodes, per_node = (int(words[words.index(name) + 1]) for name in ("--nnodes", "--nproc-per-node"))
    start = words.index("-m")
    assert words[start : start + 2] == _MODULE, words
    with as_rank_0(nodes, per_node, environment):
        os.chdir(folder)
        script, training, model, _ = make_parser().parse_args_and_config(words[start + 2 :])
        assert script.dataset_name == "prompts"
        assert script.reward_funcs == ["accuracy_reward"]
        holder = training.hf_deepspeed_config
        width = SimpleNamespace(config=SimpleNamespace(hidden_size=4096))  # of buckets alone
        holder.trainer_config_finalize(training, width, training.max_steps)
        updates, rest = divmod(training.steps_per_generation, training.gradient_accumulation_steps)
        assert rest == 0, (training.steps_per_generation, training.gradient_accumulation_steps)
        assert (training.use_vllm, training.vllm_mode, training.vllm_enable_sleep_mode) == (True, "colocate", True)
        return {
            **of_config(holder.config),
            **of_trainer(training),
            "precision": {"bfloat16": "bf16", "float16": "fp16"}[model.dtype],
            "world": training.world_size,
            "nodes": nodes,
            "gpus_per_node": per_node,
            "dp": training.world_size,
            "prompts": training.generation_batch_size // training.num_generations,
            "samples": training.num_generations,
            "updates": updates,
            "longest": training.vllm_max_model_length,
            "rollout_tp": training.vllm_tensor_parallel_size,
            "memory_share": training.vllm_gpu_memory_utilization,
            "away": [],
        }


answer(accept)
