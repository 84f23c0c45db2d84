"""verl's keys: Hydra's overrides of `main_ppo`, with Megatron's workers or FSDP's.

Names and defaults are those of verl 0.9.1: trainer/config/_generated_ppo_{trainer,megatron_trainer}.yaml and
sft_trainer_engine.yaml. What the job does not say of the algorithm is left as verl has it.
"""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.formats.keys import Key, Trainer, Value, if_set, keys, lora, of_algorithm, where
from symconfig.formats.megatron import DEGREES
from symconfig.frameworks.megatron.releases import fuses_rotations

VERL = Trainer(name="verl", release="0.9.1", dashes=("", "_"), offload="ref.megatron.param_offload=True")
ACTOR, ROLLOUT, REFERENCE, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref", "model"))
ENGINES = ("vllm", "sglang")
SECTIONS = {"actor": ACTOR, "critic": "critic"}  # of the trained models
# The advantage of each algorithm, and the aggregation of losses that makes it that one (recipes of its examples).
ADVANTAGES = {"grpo": "grpo", "dapo": "grpo", "gspo": "grpo", "rloo": "rloo",
              "reinforce_plus_plus": "reinforce_plus_plus", "remax": "remax", "ppo": "gae"}  # fmt: skip
_AGGREGATED = {"dapo": "token-mean", "gspo": "seq-mean-token-mean"}


_experts = if_set("model.experts", True)


def _megatron(role: str) -> dict[str, Key]:
    """Return the keys of a role's Megatron workers: degrees, stages, dispatcher, offload, recomputation and kernels.

    Kernels are those that plans count on and Megatron-Bridge leaves off for some families (0.3.1 to 0.6.0).
    """
    at, options = f"{SECTIONS[role]}.megatron", f"{role}.configuration"
    own = f"{at}.override_transformer_config"
    return {
        **{f"{at}.{DEGREES[name]}": Key(f"{role}.configuration.{name}") for name in ("tp", "pp", "cp", "ep")},
        **keys(at, virtual_pipeline_model_parallel_size=f"{role}.chunks"),
        **keys(f"+{own}", num_layers_in_first_pipeline_stage=where(f"{options}.first_stage_layers"),
               num_layers_in_last_pipeline_stage=where(f"{options}.last_stage_layers"),
               account_for_embedding_in_pipeline_split=where(f"{options}.account_for_embedding"),
               account_for_loss_in_pipeline_split=where(f"{options}.account_for_loss"),
               bias_activation_fusion=lambda run: (run.model.gated_mlp and run.model.hidden_act == "silu") or None,
               apply_rope_fusion=lambda run: (fuses_rotations(run.model) and run.model.latent is None) or None,
               moe_grouped_gemm=_experts, moe_permute_fusion=_experts, moe_router_fusion=_experts),
        f"{at}.{DEGREES['etp']}": Key(f"{role}.experts.etp"),
        **keys(f"+{own}", moe_token_dispatcher_type=f"{role}.flex.kind", moe_flex_dispatcher_backend=f"{role}.flex.by"),
        **keys(at, param_offload=f"{role}.away.weights", optimizer_offload=f"{role}.away.states",
               sequence_parallel=(f"{options}.sequence_parallel", True), dtype="dtype"),
        **keys(own, recompute_granularity=f"{role}.recompute.granularity", recompute_method=f"{role}.recompute.method",
               recompute_num_layers=f"{role}.recompute.num_layers", recompute_modules=f"{role}.recompute.modules"),
    }  # fmt: skip


def _fsdp(role: str, config: str, model: str) -> dict[str, Key]:
    """Return the keys of a role's FSDP workers; all but offload is written as for the actor.

    role: "actor" or "critic". config, model: names of its sections.
    """
    at = SECTIONS[role]
    return {
        **keys(model, enable_gradient_checkpointing=(f"{role}.recomputes", True, lambda run: run.actor.recomputes)),
        **keys(at, strategy=(f"{role}.strategy", None, "fsdp2")),
        **keys(config, fsdp_size=(f"{role}.shards", None, lambda run: run.plan.best.shard_ranks or -1),
               reshard_after_forward=True, param_offload=f"{role}.away.weights",
               optimizer_offload=f"{role}.away.states",
               offload_policy=(f"{role}.streams", None, lambda run: run.actor.configuration.param_offload)),
        **keys(at, ulysses_sequence_parallel_size=lambda run: run.actor.configuration.cp),
    }  # fmt: skip


def _engine(role: str, config: str) -> dict[str, Key]:
    """Return keys of a role's FSDP engine that are read but not written: context parallelism and the model's type."""
    return keys(
        config,
        ulysses_sequence_parallel_size=(
            f"{role}.configuration.cp",
            f"={SECTIONS[role]}.ulysses_sequence_parallel_size",
        ),
        model_dtype=f"{role}.dtype",
    )


def _packed(role: str, at: str, begin: str, tokens: Value, dynamic: Value) -> dict[str, Key]:
    """Return keys for the size of a role's micro-batch: dynamic or not, tokens per GPU, sequences per GPU or in all.

    at, begin: section and prefix of their names. tokens, dynamic: defaults of these two.
    """
    return {
        f"{at}.{begin.removeprefix('ppo_')}use_dynamic_bsz": Key(f"{role}.dynamic", dynamic),
        f"{at}.{begin}max_token_len_per_gpu": Key(f"{role}.tokens", tokens),
        f"{at}.{begin}micro_batch_size_per_gpu": Key(f"{role}.micro"),
        f"{at}.{begin}micro_batch_size": Key(f"{role}.micro_of_all"),
    }


def _reward(at: str, model: str) -> dict[str, Key]:
    """Return the keys, in section `at`, of engines that serve a reward model. model: the key's name for its weights."""
    return {
        **keys(at, enable=("rewards.enabled", None, True), enable_resource_pool="rewards.apart"),
        **keys(f"{at}.rollout", name=lambda run: run.rl.rollout.engine or ENGINES[0],
               prompt_length=lambda run: run.rl.prompt_length.max,
               response_length=lambda run: run.rl.response_length.max,
               tensor_model_parallel_size=("rewards.planned.tp", 2),
               gpu_memory_utilization=("rewards.planned.memory_share", 0.5)),
        **keys(at, nnodes="rewards.nodes", n_gpus_per_node="rewards.gpus"),
        **keys(at, **{model: "rewards.model"}),
    }  # fmt: skip


ALGORITHM = {
    **keys("algorithm", adv_estimator=("rl.algorithm", "gae", lambda run: ADVANTAGES[run.rl.algorithm])),
    **keys(f"{ACTOR}.policy_loss", loss_mode=of_algorithm("gspo", "gspo")),
    **keys(ACTOR, loss_agg_mode=lambda run: _AGGREGATED.get(run.rl.algorithm), clip_ratio_low="clip.low",
           clip_ratio_high="clip.high", use_kl_loss="rl.reference",
           entropy_coeff=("rl.entropy", None, if_set("rl.entropy", 0.001, 0))),
}  # fmt: skip
DATA = keys(
    "data",
    train_batch_size=("rl.prompts", 1024),
    max_prompt_length=("rl.prompt_length.max", 512),
    max_response_length=("rl.response_length.max", 512),
    filter_overlong_prompts=True,
)
_ACTOR = {
    **keys(MODEL, use_remove_padding=("actor.packs", True, True)),
    **keys(ACTOR, ppo_mini_batch_size=("rl.update_prompts", 256, lambda run: run.rl.prompts // run.rl.updates),
           ppo_epochs=("rl.epochs", 1)),
    **_packed("actor", ACTOR, "ppo_", 16384, None),
    **keys(f"{ACTOR}.optim", lr="training.lr", lr_warmup_steps="training.lr_warmup_iters",
           weight_decay="training.weight_decay", clip_grad="training.clip_grad"),
}  # fmt: skip
_CRITIC = {
    **keys("critic", enable=True, **{"model.path": "critic.model"}),
    **_packed("critic", "critic", "ppo_", 32768, f"={ACTOR}.use_dynamic_bsz"),
}  # fmt: skip
_LORA = f"{MODEL}.lora"
MEGATRON_ACTOR = {
    **_ACTOR,
    **_megatron("actor"),
    **keys(f"+{ACTOR}.megatron.override_ddp_config", overlap_grad_reduce="actor.configuration.overlap_grad_reduce"),
    **keys(f"{ACTOR}.optim", lr_decay_style="training.lr_decay_style", min_lr="training.min_lr"),
    **keys(f"+{ACTOR}.optim.override_optimizer_config", adam_beta1="training.adam_beta1",
           adam_beta2="training.adam_beta2", adam_eps="training.adam_eps"),
    **keys(_LORA, type="adapter.kind"),
    **lora(*(f"{_LORA}.{name}" for name in ("rank", "alpha", "dropout", "target_modules")), unset=(None, 32, None)),
    # Without these verl drops layers of multi-token prediction (utils/megatron_utils.py).
    **keys(f"{MODEL}.mtp", enable="actor.predicts", enable_train=lambda run: run.actor.predicts),
    **keys(f"{REFERENCE}.megatron",
           param_offload=("reference.offloaded", f"={ACTOR}.megatron.param_offload", lambda run: run.rl.reference)),
}  # fmt: skip
MEGATRON_CRITIC = {
    **_CRITIC,
    **_megatron("critic"),
    **keys("+critic.megatron.override_ddp_config", overlap_grad_reduce="critic.configuration.overlap_grad_reduce"),
}  # fmt: skip
FSDP_ACTOR = {
    **_ACTOR,
    **_fsdp("actor", f"{ACTOR}.fsdp_config", MODEL),
    **lora(f"{MODEL}.lora_rank", f"{MODEL}.lora_alpha", "", f"{MODEL}.target_modules", unset=(None, 16, None)),
    # The frozen weights are read from the model's files.
    **keys(ROLLOUT, load_format=if_set("adapter", "safetensors")),
    # A second copy of the actor, whose shards would be on all GPUs.
    **keys(f"{REFERENCE}.fsdp_config", fsdp_size="reference.shards"),
    **keys(f"{ACTOR}.optim", betas=lambda run: [run.training.adam_beta1, run.training.adam_beta2],
           lr_scheduler_type="training.lr_decay_style", min_lr_ratio=lambda run: run.training.min_lr / run.training.lr,
           override_optimizer_config=lambda run: f"{{eps:{run.training.adam_eps:g}}}"),
}  # fmt: skip
FSDP_CRITIC = {**_CRITIC, **_fsdp("critic", "critic.fsdp", "critic.model")}
_AS_THE_ACTOR = (f"={ACTOR}.ppo_max_token_len_per_gpu", f"={ACTOR}.use_dynamic_bsz")
_ROLLOUT = {
    **keys(ROLLOUT, name=("rl.rollout.engine", None, lambda run: run.rl.rollout.engine or ENGINES[0]),
           n=("rl.samples", 1), tensor_model_parallel_size=("step.rollout_tp", 2),
           gpu_memory_utilization=("step.memory_share", 0.5), max_num_seqs=("engine.max_num_seqs", 256),
           free_cache_engine=("engine.sleeps", True)),
    **_packed("rollout", ROLLOUT, "log_prob_", *_AS_THE_ACTOR),
    **_packed("reference", REFERENCE, "log_prob_", *_AS_THE_ACTOR),
    **keys(ROLLOUT, data_parallel_size=("ranks.dp", 1), expert_parallel_size="ranks.experts"),
}  # fmt: skip
_TRAINER = {
    **keys("trainer", logger=lambda run: ["console", *(name for name, to in run.loggers.items() if to)]),
    **keys("trainer", project_name="training.wandb_project"),
    **keys("actor_rollout_ref", nccl_timeout=lambda run: 60 * (run.training.distributed_timeout_minutes or 0) or None),
    **keys("trainer", default_local_dir="training.save", save_freq="saves.every"),
}
_REWARDS = _reward("reward.reward_model", "model_path")
WRITTEN = {  # by the workers: the sections of train.sh
    kind: {"ALGORITHM": ALGORITHM, "DATA": DATA, "ACTOR": actor, "CRITIC": critic,
           "ROLLOUT": _ROLLOUT, "REWARD": _REWARDS, "TRAINER": _TRAINER}
    for kind, actor, critic in (("megatron", MEGATRON_ACTOR, MEGATRON_CRITIC), ("fsdp", FSDP_ACTOR, FSDP_CRITIC))
}  # fmt: skip
_READ = {
    **keys("algorithm", use_kl_in_reward="rl.reference_in_reward"),
    **keys(ROLLOUT, temperature="rollout.temperature"),
    **keys(MODEL, path="actor.model", lora_adapter_path="adapter.path", use_fused_kernels="actor.fuses_logits"),
    **keys(_LORA, adapter_path="adapter.path"),
    **keys("trainer", nnodes=("world.nodes", 1), n_gpus_per_node=("world.gpus", 8)),
    **keys(MODEL, use_liger="actor.liger"),
    **keys("critic.model", use_remove_padding=("critic.packs", True), use_liger="critic.liger"),
    **_reward("reward_model", "model.path"),  # before 0.7
}  # fmt: skip
_FSDP_READ = {
    **_engine("actor", f"{ACTOR}.fsdp_config"),
    **_engine("critic", "critic.model.fsdp_config"),
    **_fsdp("critic", "critic.model.fsdp_config", "critic.model"),
    **_engine("critic", "critic.fsdp"),
}  # fmt: skip


def _read(kind: str, more: Mapping[str, Key]) -> dict[str, Key]:
    merged = {name.removeprefix("+"): key for table in WRITTEN[kind].values() for name, key in table.items()}
    return {**more, **merged, **_READ}


KEYS = {"megatron": _read("megatron", {}), "fsdp": _read("fsdp", _FSDP_READ)}
