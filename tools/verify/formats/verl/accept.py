"""verl's own configuration: Hydra composes it from the words of train.sh, its dataclasses and checks read it.

Stood in for: Ray, which is imported and not used here.
"""

from __future__ import annotations

import math
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from absent import stand_in
from accepting import Values, answer, called, dry_run, ranks
from hydra import compose, initialize_config_module
from peft import LoraConfig

stand_in("ray")
# What verl asks of vLLM, which is not here, for adapters: the least rank that it serves.
for name in ("vllm_rollout", "vllm_rollout.utils"):
    sys.modules[f"verl.workers.rollout.{name}"] = ModuleType(name)
sys.modules["verl.workers.rollout.vllm_rollout.utils"].get_vllm_max_lora_rank = lambda rank: rank

from verl.utils.config import omega_conf_to_dataclass, validate_config  # noqa: E402
from verl.workers.config.optimizer import build_optimizer  # noqa: E402
from verl.workers.engine.fsdp import utils as meshes  # noqa: E402

MODULE = "verl.trainer.main_ppo"


def accept(folder: Path) -> Values:
    files = {"TRAIN_FILES": "train.parquet", "VAL_FILES": "val.parquet", "REWARD_MODEL": "rewards"}
    words = dry_run(folder, "train.sh", **files)
    assert words[:3] == ["python3", "-m", MODULE], words[:3]
    assert words[3] == "--config-name", words[3]
    with initialize_config_module(version_base=None, config_module="verl.trainer.config"):
        config = compose(config_name=words[4], overrides=words[5:])
    with_critic = config.algorithm.adv_estimator == "gae"
    # It would fetch the critic's files by name.
    with mock.patch("verl.workers.config.model.HFModelConfig.__post_init__"):
        validate_config(config, use_reference_policy=config.actor_rollout_ref.actor.use_kl_loss, use_critic=with_critic)
    if with_critic:  # of the actor's model
        assert config.critic.model.path == config.actor_rollout_ref.model.path, config.critic.model.path
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    engine, world = actor.engine, config.trainer.nnodes * config.trainer.n_gpus_per_node
    reference = config.actor_rollout_ref.ref
    assert reference.strategy == actor.strategy
    assert reference.log_prob_max_token_len_per_gpu == rollout.log_prob_max_token_len_per_gpu or not actor.use_kl_loss
    if with_critic:
        with mock.patch("verl.workers.config.model.HFModelConfig.__post_init__"):
            critic = omega_conf_to_dataclass(config.critic)
        assert critic.engine.strategy == engine.strategy
        assert critic.engine.param_offload == engine.param_offload
        assert critic.engine.dtype == engine.dtype
    kind = _megatron if actor.strategy == "megatron" else _fsdp
    return {
        **kind(config, actor, world),
        **ranks(config.trainer.nnodes, config.trainer.n_gpus_per_node),
        "tokens_per_gpu": actor.ppo_max_token_len_per_gpu,
        "read_per_gpu": rollout.log_prob_max_token_len_per_gpu,
        "lr": actor.optim.lr,
        "weight_decay": actor.optim.weight_decay,
        "lr_warmup_iters": actor.optim.lr_warmup_steps,
        "prompts": config.data.train_batch_size,
        "samples": rollout.n,
        "updates": config.data.train_batch_size // actor.ppo_mini_batch_size,
        "longest": config.data.max_prompt_length + config.data.max_response_length,
        "rollout_tp": rollout.tensor_model_parallel_size,
        "rollout_dp": rollout.data_parallel_size,
        "replica_gpus": rollout.tensor_model_parallel_size * rollout.data_parallel_size,
        "memory_share": rollout.gpu_memory_utilization,
        **_rewards(config.reward.reward_model),
        **(_critic(critic.engine) if with_critic and actor.strategy == "megatron" else {}),
        "away": ["weights"] * engine.param_offload + ["optimizer state"] * engine.optimizer_offload,
    }


def _rewards(told: Any) -> Values:
    """Return what verl's own class reads of a network that rewards."""
    if not told.enable:
        return {"reward_gpus": None}
    read = omega_conf_to_dataclass(told)
    assert read.model_path == "rewards", read.model_path
    assert read.rollout.free_cache_engine
    return {
        "reward_gpus": read.n_gpus_per_node * read.nnodes if read.enable_resource_pool else 0,
        "reward_tp": read.rollout.tensor_model_parallel_size,
        "reward_share": read.rollout.gpu_memory_utilization,
    }


def _megatron(config: Any, actor: Any, world: int) -> Values:
    """Return what workers of Megatron-LM are told."""
    engine, lora = actor.engine, config.actor_rollout_ref.model.lora
    degrees = called("tp pp cp ep sequence_parallel", engine)
    optimizer = actor.optim.override_optimizer_config
    adapted = {"adapter": "lora", "lora_r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
    return {
        **(adapted if lora.rank else {"adapter": None}),
        **degrees,
        "vpp": engine.virtual_pipeline_model_parallel_size or 1,
        "dp": world // (degrees["tp"] * degrees["pp"] * degrees["cp"]),
        **_ends(engine.override_transformer_config),
        "recompute": engine.override_transformer_config["recompute_granularity"] or "none",
        "overlap_grad_reduce": engine.override_ddp_config["overlap_grad_reduce"],
        "lr_decay_style": actor.optim.lr_decay_style,
        "min_lr": actor.optim.min_lr,
        **{name: optimizer[name] for name in ("adam_beta1", "adam_beta2", "adam_eps")},
    }


def _ends(told: Any) -> Values:
    """Return what Megatron-Core's configuration is told of the first and of the last stage."""
    from megatron.core.transformer import TransformerConfig

    known = {each.name for each in fields(TransformerConfig)} | {"attention_backend"}
    assert set(told) <= known, set(told) - known
    return {
        "first_stage_layers": told.get("num_layers_in_first_pipeline_stage"),
        "last_stage_layers": told.get("num_layers_in_last_pipeline_stage"),
        "account_for_embedding": told.get("account_for_embedding_in_pipeline_split", False),
        "account_for_loss": told.get("account_for_loss_in_pipeline_split", False),
    }


def _critic(engine: Any) -> Values:
    """Return what the critic's workers of Megatron-LM are told."""
    names = {
        "tp": "tensor_model", "pp": "pipeline_model", "cp": "context", "ep": "expert_model", "etp": "expert_tensor",
    }  # fmt: skip
    degrees = {name: getattr(engine, f"{word}_parallel_size") for name, word in names.items()}
    return {
        "critic": {
            **degrees,
            "etp": degrees["etp"] or 1,
            "vpp": engine.virtual_pipeline_model_parallel_size or 1,
        },
        "critic_recompute": engine.override_transformer_config["recompute_granularity"] or "none",
    }


def _fsdp(config: Any, actor: Any, world: int) -> Values:
    """Return what workers of FSDP 2 are told, and the optimizer that verl makes of it."""
    engine = actor.engine
    assert engine.strategy == "fsdp2", engine.strategy
    optimizer = build_optimizer([torch.nn.Parameter(torch.zeros(1))], actor.optim)
    (group,) = optimizer.param_groups
    reference = config.actor_rollout_ref.ref
    if actor.use_kl_loss and not config.actor_rollout_ref.model.lora_rank:  # else the actor without its adapters is it
        assert reference.fsdp_config.fsdp_size == engine.fsdp_size, reference.fsdp_config.fsdp_size
        assert reference.ulysses_sequence_parallel_size == engine.ulysses_sequence_parallel_size
    return {
        "tp": 1,
        "pp": 1,
        "cp": engine.ulysses_sequence_parallel_size,
        "dp": world // engine.ulysses_sequence_parallel_size,
        "zero_stage": 3 if engine.reshard_after_forward else 2,
        "instances": _instances(world, engine.fsdp_size),
        "param_offload": engine.offload_policy,
        "precision": {"bfloat16": "bf16", "float16": "fp16"}[engine.dtype],
        "recompute": "full" if config.actor_rollout_ref.model.enable_gradient_checkpointing else "none",
        **_adapters(config.actor_rollout_ref),
        "adam_beta1": group["betas"][0],
        "adam_beta2": group["betas"][1],
        "adam_eps": group["eps"],
        "clip_grad": actor.optim.clip_grad,
        "lr_decay_style": actor.optim.lr_scheduler_type,
        "min_lr": actor.optim.min_lr_ratio * actor.optim.lr,
    }


def _instances(world: int, size: int) -> int:
    """Return how many groups of ranks hold all weights each, by the mesh that verl makes of the world."""
    with mock.patch.object(meshes, "init_device_mesh", side_effect=lambda *_, mesh_shape, **__: mesh_shape):
        return math.prod(meshes.create_device_mesh(world_size=world, fsdp_size=size)[:-1])


def _adapters(told: Any) -> Values:
    """Return the adapters that PEFT makes of what FSDP's workers are told (transformer_impl.py, _build_lora_module)."""
    model = told.model
    if not model.lora_rank:
        return {"adapter": None}
    assert told.rollout.load_format == "safetensors", told.rollout.load_format
    made = LoraConfig(r=model.lora_rank, lora_alpha=model.lora_alpha, target_modules=list(model.target_modules))
    targets = sorted(made.target_modules or ())
    return {"adapter": "lora", "lora_r": made.r, "lora_alpha": made.lora_alpha, "lora_targets": targets}


if __name__ == "__main__":
    answer(accept)
