"""OpenRLHF's options: of train_ppo_ray, whose actor runs with DeepSpeed's ZeRO, and of train_dpo and its like.

Names and defaults are those of OpenRLHF 0.11.2 (cli/train_ppo_ray.py, cli/train_dpo.py); before 0.10 they had no
sections. Of the programs that train alone, what is not said there has the defaults of train_ppo_ray.
"""

from __future__ import annotations

from typing import Any

from symconfig.formats.keys import Key, Trainer, if_set, keys, lora, of_algorithm, where
from symconfig.formats.links import value_of

# The advantage of each algorithm; that of GRPO's kin is its own.
ADVANTAGES = {"grpo": "group_norm", "dapo": "group_norm", "gspo": "group_norm", "rloo": "rloo",
              "reinforce_plus_plus": "reinforce", "ppo": "gae"}  # fmt: skip
SCHEDULES = {"cosine": "cosine_with_min_lr", "constant": "constant_with_warmup"}


def _trained(model: str, optimizer: str) -> dict[str, Key]:
    """Return the keys of a trained model (recomputation, router loss) and its optimizer (Adam, clipping, schedule).

    Without `model` its keys are left out. model, optimizer: names of their sections; the optimizer's may be empty.
    """
    experts = keys(
        model,
        gradient_checkpointing_enable=("actor.recomputes", None, lambda run: run.actor.recompute is not None),
        aux_loss_coef=where("model.experts.router_aux_loss_coef"),
    )
    return {
        **(experts if model else {}),
        **keys(f"{optimizer}.adam".removeprefix("."), lr="training.lr",
               betas=lambda run: (run.training.adam_beta1, run.training.adam_beta2), eps="training.adam_eps",
               weight_decay="training.weight_decay"),
        **keys(optimizer, max_norm="training.clip_grad",
               lr_scheduler=lambda run: SCHEDULES[run.training.lr_decay_style],
               min_lr_ratio=lambda run: (
                   run.training.min_lr / run.training.lr if run.training.lr_decay_style == "cosine" else None),
               lr_warmup_ratio=lambda run: run.training.lr_warmup_iters / run.training.train_iters),
    }  # fmt: skip


def _in_loss(value: object) -> Any:
    """Return a function that gives `value` where the KL term is in the loss (with a critic it is in the reward)."""
    return lambda run: value if run.rl.reference and not run.rl.has_critic else None


def _per_rank(field: str) -> Any:
    """Return a function that gives tokens per GPU: the field's, or the actor's, divided by tp and rounded up."""
    return lambda run: -(-(value_of(run, field) or run.actor.tokens) // run.actor.configuration.tp)


_TRAINED = "=train.max_tokens_per_gpu"
STEP = {
    "ALGORITHM": {
        **keys("algo", **{"advantage.estimator": ("rl.algorithm", "gae", lambda run: ADVANTAGES[run.rl.algorithm])}),
        **keys("actor", policy_loss_type=of_algorithm("gspo", "gspo"),
               eps_clip_low_high=lambda run: run.clip and (run.clip.low, run.clip.high)),
        **keys("algo.kl", init_coef=("rl.reference", 0.01, if_set("rl.reference", 0.001, 0)),
               use_loss=_in_loss(True), estimator=_in_loss("k3")),
        **keys("actor", entropy_coef=("rl.entropy", None, if_set("rl.entropy", 0.001))),
    },
    "ROLLOUT": {
        **keys("rollout", batch_size=("rl.prompts", 1024), n_samples_per_prompt=("rl.samples", 1)),
        **keys("rollout", max_new_tokens="rl.response_length.max"),
        **keys("data", max_len=("rl.longest", 2048)),
    },
    "ACTOR": {
        **keys("train", batch_size=("rl.batch", 128), max_epochs=("rl.epochs", 1)),
        **keys("train", dynamic_batch_enable="actor.dynamic"),
        **keys("train", max_tokens_per_gpu=("actor.tokens", 16192, _per_rank("actor.tokens"))),
        **keys("rollout", max_tokens_per_gpu=("rollout.tokens", _TRAINED, _per_rank("rollout.tokens"))),
        **_trained("actor", "actor"),
    },
    "CRITIC": _trained("", "critic"),
    "VLLM": {
        **keys(
            "train",
            # Beside an engine of its own the actor may have the reference alone with it.
            colocate_actor_ref=lambda run: run.roles_apart,
            colocate_all=("colocated", None, lambda run: not run.roles_apart),
            async_enable=("overlaps", None, lambda run: run.rl.placement == "split"),
        ),
        **keys("vllm", num_engines="engine.replicas", tensor_parallel_size=("step.rollout_tp", 1),
               gpu_memory_utilization=("step.memory_share", 0.95),
               enable_sleep=("engine.sleeps", None, lambda run: run.step and run.rl.placement == "colocated")),
    },
}  # fmt: skip
PAIRS = {
    "PAIRS": {
        **keys("model", beta="preference.beta", ipo_enable=("ipo", None, lambda run: run.preference.loss == "ipo")),
        **keys("data", max_len="plan.best.configuration.seq_length"),
        **keys("train", batch_size="pairs", micro_batch_size=("actor.micro", 1)),
    },
    "POLICY": _trained("model", ""),
    "ADAPTER": {
        **keys("ds", load_in_4bit="adapter.quantised"),
        **lora("ds.lora.rank", "ds.lora.alpha", "ds.lora.dropout", "ds.lora.target_modules", unset=(None, 16, None)),
    },
}  # fmt: skip
BOTH = {
    "DEEPSPEED": keys("ds", zero_stage=("actor.configuration.zero_stage", 2),
                      param_dtype=("actor.configuration.precision", "bf16"), grad_accum_dtype="actor.grad_dtype",
                      overlap_comm="actor.configuration.overlap_grad_reduce",
                      adam_offload=("actor.hosts_adam", None,
                                    lambda run: run.actor.configuration.optimizer_offload > 0),
                      tensor_parallel_size=("actor.configuration.tp", 1), packing_samples="packs",
                      attn_implementation=("attention", "flash_attention_2"), enable_sleep="actor.away.states"),
    "RUN": {
        **keys("train", seed="training.seed"),
        **keys("logger", logging_steps="training.log_interval", tensorboard_dir="training.tensorboard_dir"),
        **keys("ckpt", path="training.save", output_dir="training.save", save_steps="saves.every"),
        **keys("ckpt", load_enable=lambda run: run.training.load is not None),
        # The key itself is looked up by Weights & Biases, in WANDB_API_KEY or ~/.netrc.
        **keys("logger.wandb", key=lambda run: run.training.wandb_project and "of-the-environment"),
        **keys("logger.wandb", project="training.wandb_project", run_name="wandb_name"),
    },
}  # fmt: skip
ROLES = ("actor", "ref", "critic", "reward")  # models with GPUs of their own
# What is read alone: of GPUs, the programs that train alone, and ways that no plan has.
READ = {
    **{f"{role}.{name}": Key("", usual) for role in ROLES
       for name, usual in (("num_nodes", 1), ("num_gpus_per_node", 8))},
    "ds.zpg": Key("", 1), "ds.ring_attn_size": Key("", 1), "rollout.micro_batch_size": Key("", 1),
}  # fmt: skip
OPENRLHF = Trainer(
    name="openrlhf",
    release="0.11.2",
    offload="--ref.offload",
    keys={name: key for of in (PAIRS, STEP, BOTH) for table in of.values() for name, key in table.items()} | READ,
)
# Options before 0.10: a section and a name were one word; those of DeepSpeed and some others had no section.
_ALONE = """adam_offload param_dtype overlap_comm zpg grad_accum_dtype ring_attn_size packing_samples
            attn_implementation use_liger_kernel load_in_4bit zero_stage"""
OLD = {f"{role}_{name}": f"{role}.{name}" for role in ROLES
       for name in ("num_nodes", "num_gpus_per_node")} | {
    **{name: f"ds.{name}" for name in _ALONE.split()},
    **{f"lora_{name}": f"ds.lora.{name}" for name in ("rank", "alpha", "dropout")},
    **{f"vllm_{name}": f"vllm.{name}"
       for name in ("num_engines", "tensor_parallel_size", "gpu_memory_utilization", "enable_sleep")},
    **{f"{name}_batch_size": f"{name}.batch_size" for name in ("train", "rollout")},
    **{f"micro_{name}_batch_size": f"{name}.micro_batch_size" for name in ("train", "rollout")},
    **{f"{name}_max_tokens_per_gpu": f"{name}.max_tokens_per_gpu" for name in ("train", "rollout")},
    **{name: f"train.{name}"
       for name in ("max_epochs", "agent_func_path", "colocate_actor_ref", "colocate_critic_reward")},
    "pretrain": "actor.model_name_or_path", "critic_pretrain": "critic.model_name_or_path",
    "reward_pretrain": "reward.model_name_or_path", "remote_rm_url": "reward.remote_url", "ref_offload": "ref.offload",
    "gradient_checkpointing": "actor.gradient_checkpointing_enable", "entropy_loss_coef": "actor.entropy_coef",
    "ds_tensor_parallel_size": "ds.tensor_parallel_size", "deepspeed_enable_sleep": "ds.enable_sleep",
    "target_modules": "ds.lora.target_modules", "use_dynamic_batch": "train.dynamic_batch_enable",
    "async_train": "train.async_enable", "colocate_all_models": "train.colocate_all",
    "n_samples_per_prompt": "rollout.n_samples_per_prompt", "generate_max_len": "rollout.max_new_tokens",
    "max_len": "data.max_len", "max_images_per_prompt": "data.max_images_per_prompt",
    "advantage_estimator": "algo.advantage.estimator", "init_kl_coef": "algo.kl.init_coef",
}  # fmt: skip
