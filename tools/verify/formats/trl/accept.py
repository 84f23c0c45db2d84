"""TRL's own parser of its script on the words of launch.sh and config.yaml, as a rank that torchrun or Accelerate's
launcher starts, the DeepSpeed JSON as Trainer fills it in or Accelerate's plugin for FSDP, and PEFT's and bitsandbytes'
configurations as the script makes them."""

from __future__ import annotations

import importlib.util
import os
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from accepting import Values, answer, lora, of_torchrun, ranks, started
from deepspeed_words import of_config, of_trainer
from ranks import as_rank_0
from shards import launched, of_plugin
from trl import get_peft_config, get_quantization_config

LORA = ("r", "lora_alpha", "lora_dropout", "target_modules")
GIVEN = {"DATASET": "examples", "REWARD_MODEL": "rewards", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29517"}


def accept(folder: Path) -> Values:
    if (folder / "accelerate_config.yaml").exists():
        words, environment, nodes, per_node = launched(folder, **GIVEN)
    else:
        words, environment = started(folder, "torchrun", **GIVEN)
        nodes, per_node = of_torchrun(words)
    module, given = _program(words)
    with as_rank_0(nodes, per_node, environment):
        os.chdir(folder)
        script, training, model, *_ = module.make_parser().parse_args_and_config(given)
        assert script.dataset_name == "examples"
        sharded = environment.get("ACCELERATE_USE_FSDP") == "true"
        return {
            **of_trainer(training),
            **(of_plugin(environment) if sharded else _of_deepspeed(training)),
            "precision": {"bfloat16": "bf16", "float16": "fp16"}[model.dtype],
            **ranks(nodes, per_node),
            "dp": training.world_size,
            **(_step if module.__name__ == "trl.scripts.grpo" else _preference)(script, training, model),
        }


def _program(words: list[str]) -> tuple[ModuleType, list[str]]:
    """Return what Python starts, one of TRL's scripts or the folder's own, and its words."""
    if "-m" in words:
        start = words.index("-m") + 1
        return import_module(words[start]), words[start + 1 :]
    start = next(place for place, word in enumerate(words) if word.endswith(".py"))
    spec = importlib.util.spec_from_file_location("own", words[start])
    spec.loader.exec_module(made := importlib.util.module_from_spec(spec))
    return made, words[start + 1 :]


def _of_deepspeed(training: Any) -> Values:
    holder = training.hf_deepspeed_config
    width = SimpleNamespace(config=SimpleNamespace(hidden_size=4096))  # of buckets alone
    holder.trainer_config_finalize(training, width, training.max_steps)
    return of_config(holder.config)


def _step(script: Any, training: Any, model: Any) -> Values:
    network = script.reward_model_name_or_path
    assert (network, script.reward_funcs) in (("rewards", None), (None, ["accuracy_reward"])), network
    updates, rest = divmod(training.steps_per_generation, training.gradient_accumulation_steps)
    assert rest == 0, (training.steps_per_generation, training.gradient_accumulation_steps)
    assert (training.use_vllm, training.vllm_mode, training.vllm_enable_sleep_mode) == (True, "colocate", True)
    return {
        "prompts": training.generation_batch_size // training.num_generations,
        "samples": training.num_generations,
        "updates": updates,
        "longest": training.vllm_max_model_length,
        "rollout_tp": training.vllm_tensor_parallel_size,
        "memory_share": training.vllm_gpu_memory_utilization,
        "reward_gpus": None if network is None else 0,
        "away": [],
    }


def _preference(script: Any, training: Any, model: Any) -> Values:
    kind = type(training).__name__
    count = 1 if kind == "KTOConfig" else 2
    ranks, steps = training.world_size, training.gradient_accumulation_steps
    made, four = get_peft_config(model), get_quantization_config(model) is not None
    assert four == model.load_in_4bit
    if kind == "RewardConfig":
        said = {"preference_loss": "reward"}
        assert made is None or (made.task_type, made.modules_to_save) == ("SEQ_CLS", ["score"])
    elif kind in ("CPOConfig", "ORPOConfig"):
        loss = "orpo" if kind == "ORPOConfig" else {"sigmoid": "cpo"}.get(training.loss_type, training.loss_type)
        assert loss == "orpo" or training.cpo_alpha == (1.0 if loss == "cpo" else 0.0)
        said = {"preference_loss": loss, "preference_beta": training.beta}
    else:
        (loss,) = training.loss_type if kind == "DPOConfig" else (training.loss_type,)
        said = {"preference_loss": loss, "preference_beta": training.beta}
        assert training.train_sampling_strategy == ("random" if kind == "DPOConfig" else "sequential")
    return {
        "micro": count * training.per_device_train_batch_size,
        "global": count * training.per_device_train_batch_size * ranks * steps,
        "seq_length": training.max_length,
        **said,
        "adapter": None,
        **(
            {}
            if made is None
            else lora(made.r, made.lora_alpha, made.lora_dropout, made.target_modules, quantised=four)
        ),
    }


answer(accept)
