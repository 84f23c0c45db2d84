"""NeMo-RL's keys: the YAML of run_grpo.py and its like, with Megatron-Core or DTensor.

Names are those of NeMo-RL 0.7.0 (nemo_rl/algorithms/grpo.py, MasterConfig; models/policy/__init__.py). What a file does
not say is that of examples/configs/grpo_math_1B.yaml, which it inherits.
"""

from __future__ import annotations

from typing import Any

from symconfig.formats.keys import Key, Trainer, if_set, keys, lora, of_algorithm, where
from symconfig.formats.megatron import DEGREES
from symconfig.frameworks.megatron.releases import fuses_rotations

NEMO = Trainer(name="nemo-rl", release="0.7.0", dashes=("", "_"))
POLICY = "policy"
MEGATRON, DTENSOR, GENERATION = (f"{POLICY}.{name}" for name in ("megatron_cfg", "dtensor_cfg", "generation"))
ALGORITHMS = ("grpo", "dapo", "gspo", "rloo", "reinforce_plus_plus")


def _ending(end: str) -> Any:
    """Return a function of a run that gives the layers of the "first" or "last" (`end`) pipeline stage.

    If embedding or loss count as layers, it is the equal share without them; else what the plan sets, None if nothing.
    """

    def layers(run: Any) -> object:
        """Return the layers of the first or last stage; None if the plan sets none."""
        options, ends = run.actor.configuration, ("embedding", "loss")
        counted = [getattr(options, f"account_for_{each}") for each in ends]
        if not any(counted):
            return getattr(options, f"{end}_stage_layers")
        each = run.model.num_hidden_layers + sum(counted)
        return each // run.actor.configuration.pp - counted[end == "last"]

    return layers


STEP = {
    **keys("grpo", num_prompts_per_step=("rl.prompts", 32), num_generations_per_prompt=("rl.samples", 16),
           max_num_steps="training.train_iters", seed="training.seed",
           skip_reference_policy_logprobs_calculation=(
               "rl.no_reference", None, lambda run: not run.rl.reference or None),
           normalize_rewards=of_algorithm("rloo", False)),
    "grpo.adv_estimator.name": Key("rl.algorithm", None, of_algorithm("reinforce_plus_plus", "reinforce_plus_plus")),
    **keys("loss_fn",
           reference_policy_kl_penalty=("rl.reference", 0.01, if_set("rl.reference", 0.001, 0.0)),
           ratio_clip_min="clip.low", ratio_clip_max="clip.high",
           sequence_level_importance_ratios=of_algorithm("gspo", True), token_level_loss=of_algorithm("gspo", False),
           disable_ppo_ratio=of_algorithm("rloo", True)),
    **keys("checkpointing", enabled=lambda run: run.training.save is not None),
    **keys("checkpointing", checkpoint_dir="training.save", save_period="saves.every"),
    **keys(POLICY, model_name="actor.model", train_global_batch_size=("rl.batch", 512),
           train_micro_batch_size=("actor.micro", 4, 1),
           logprob_batch_size=("rollout.micro", f"={POLICY}.train_micro_batch_size", 1),
           max_total_sequence_length=("rl.longest", 512), make_sequence_length_divisible_by="multiple",
           precision=("dtype", "bfloat16"), max_grad_norm="training.clip_grad"),
    **keys(f"{POLICY}.dynamic_batching", enabled=False),
    **keys(f"{POLICY}.sequence_packing", enabled=True, train_mb_tokens="actor.room", logprob_mb_tokens="rollout.room"),
    **keys(GENERATION, backend=("rl.rollout.engine", "vllm", "vllm"),
           max_new_tokens=("rl.response_length.max", f"={POLICY}.max_total_sequence_length")),
    **keys(f"{GENERATION}.vllm_cfg", max_model_len=lambda run: run.rl.longest, async_engine=False,
           tensor_parallel_size=("step.rollout_tp", 1), gpu_memory_utilization=("step.memory_share", 0.6),
           expert_parallel_size="ranks.experts"),
    **keys(f"{GENERATION}.vllm_kwargs", max_num_seqs=lambda run: run.rl.rollout.max_num_seqs),
    **keys(f"{GENERATION}.colocated", enabled=("colocated", True, True)),
    **keys(DTENSOR, enabled=False),
    **keys(MEGATRON, enabled=True),
    **{f"{MEGATRON}.{name}": Key(f"actor.configuration.{degree}") for degree, name in DEGREES.items()},
    **keys(MEGATRON, sequence_parallel="actor.configuration.sequence_parallel",
           activation_checkpointing=lambda run: run.actor.recompute is not None,
           recompute_granularity="actor.recompute.granularity", recompute_modules="actor.recompute.modules",
           moe_token_dispatcher_type=lambda run: run.model.experts and run.actor.configuration.moe_dispatcher,
           moe_permute_fusion=if_set("model.experts", True),
           moe_flex_dispatcher_backend="actor.flex.by",
           moe_enable_deepep=lambda run: run.actor.flex and run.actor.flex.by == "deepep",
           num_layers_in_first_pipeline_stage=_ending("first"), num_layers_in_last_pipeline_stage=_ending("last"),
           apply_rope_fusion=lambda run: None if fuses_rotations(run.model) else False,
           mtp_num_layers=where("model.num_nextn_predict_layers"),
           mtp_loss_scaling_factor=if_set("model.num_nextn_predict_layers", 0.1)),
    **{f"{MEGATRON}.optimizer.{name}": Key(f"training.{name}")
       for name in ("lr", "min_lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps")},
    **keys(
        f"{MEGATRON}.optimizer",
        bf16=lambda run: run.dtype == "bfloat16",
        fp16=lambda run: run.dtype == "float16",
        use_distributed_optimizer=True,
        # Without it what is offloaded does not see which weights are loaded (NeMo-RL/issues/2371).
        use_precision_aware_optimizer=lambda run: run.actor.configuration.optimizer_offload > 0,
        optimizer_cpu_offload=lambda run: run.actor.configuration.optimizer_offload > 0,
        optimizer_offload_fraction="actor.configuration.optimizer_offload",
    ),
    **keys(f"{MEGATRON}.scheduler", lr_decay_style="training.lr_decay_style",
           lr_decay_iters=lambda run: run.training.lr_decay_iters or run.training.train_iters,
           lr_warmup_iters="training.lr_warmup_iters", lr_warmup_init=0.0),
    **keys(f"{MEGATRON}.distributed_data_parallel_config",
           grad_reduce_in_fp32=lambda run: run.actor.configuration.grad_bytes == 4,
           overlap_grad_reduce="actor.configuration.overlap_grad_reduce",
           overlap_param_gather="actor.configuration.overlap_param_gather"),
    **keys("data", max_input_seq_length="rl.prompt_length.max"),
    **keys("data.train", dataset_name=lambda run: run.data_path and "ResponseDataset", data_path="data_path"),
}  # fmt: skip
# Workers that read responses with a network of rewards, on GPUs of their own.
REWARDS = {
    **keys("env.reward_model", max_model_len=lambda run: run.rl.longest, batch_size=1),
    **keys("env.reward_model", model_name="rewards.model", precision="dtype"),
    **keys("env.reward_model.resources", num_nodes="rewards.nodes", gpus_per_node="rewards.gpus"),
}  # fmt: skip
RUN = {
    **keys("logger", wandb_enabled=if_set("training.wandb_project", True)),
    **keys("logger.wandb", project="training.wandb_project", name="wandb_name"),
    **keys("logger", tensorboard_enabled=if_set("training.tensorboard_dir", True)),
    **keys("logger", log_dir="training.tensorboard_dir"),
    **keys("cluster", gpus_per_node=("world.gpus", 1), num_nodes=("world.nodes", 1)),
}  # fmt: skip


def _adapter(at: str) -> dict[str, Key]:
    names = (f"{at}.{name}" for name in ("dim", "alpha", "dropout", "target_modules"))
    return {**keys(at, enabled="adapter.enabled"), **lora(*names, unset=(8, 32, None))}


KEYS = {
    "megatron": {
        **STEP, **RUN, **_adapter(f"{MEGATRON}.peft"), f"{MEGATRON}.recompute_granularity": Key("", "full"),
    },
    "dtensor": {
        **{name: key for name, key in STEP.items() if not name.startswith(MEGATRON)},
        **RUN,
        **_adapter(f"{DTENSOR}.lora_cfg"),
        **keys(DTENSOR, tensor_parallel_size="actor.configuration.tp", context_parallel_size="actor.configuration.cp",
               expert_parallel_size="actor.configuration.ep"),
    },
}  # fmt: skip
