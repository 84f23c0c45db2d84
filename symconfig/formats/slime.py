"""slime's own options, beside Megatron-LM's.

Names and defaults are those of slime 0.3.1, slime/utils/arguments.py and slime/backends/sglang_utils/arguments.py.
"""

from __future__ import annotations

from symconfig.formats.keys import Key, Trainer, if_set, keys, of_algorithm

# The advantage of each algorithm, and what else makes it that one (scripts/ and docs of slime).
ADVANTAGES = {"grpo": "grpo", "dapo": "grpo", "gspo": "gspo", "reinforce_plus_plus": "reinforce_plus_plus"}


ROLLOUT = keys(num_rollout="training.train_iters", rollout_batch_size="rl.prompts",
               n_samples_per_prompt=("rl.samples", 1), num_steps_per_rollout="rl.updates",
               rollout_max_prompt_len="rl.prompt_length.max", rollout_max_response_len="rl.response_length.max",
               rollout_max_context_len="rl.longest", rollout_temperature=1, rollout_shuffle=True, rm_url="rewards.url",
               balance_data=True)  # fmt: skip
ALGORITHM = keys(advantage_estimator=("rl.algorithm", "grpo", lambda run: ADVANTAGES[run.rl.algorithm]),
                 calculate_per_token_loss=of_algorithm("dapo", True),
                 normalize_advantages=of_algorithm("reinforce_plus_plus", True),
                 eps_clip="clip.low", eps_clip_high="clip.high", use_kl_loss="rl.reference",
                 kl_loss_coef=if_set("rl.reference", 0.001), kl_loss_type=if_set("rl.reference", "low_var_kl"),
                 entropy_coef=("rl.entropy", None, if_set("rl.entropy", 0.001, 0.0)))  # fmt: skip
BATCH = keys(use_dynamic_batch_size="actor.dynamic", max_tokens_per_gpu="actor.tokens")
SGLANG = keys(
    colocate=("colocated", None, lambda run: run.rl.placement == "colocated"),
    num_gpus_per_node="plan.cluster.gpus_per_node",
    no_offload_train=lambda run: run.step and run.rl.placement == "colocated" and not run.step.away,
    rollout_num_gpus=lambda run: run.step.rollout_gpus if run.step and run.rl.placement == "split" else None,
    rollout_num_gpus_per_engine=("engine.gpus", 1, lambda run: run.step and run.step.replica_gpus),
    sglang_enable_dp_attention=("ranks.apart", None, lambda run: bool(run.step and run.ranks)),
    sglang_ep_size="ranks.experts",
    sglang_dp_size="ranks.dp",
    sglang_mem_fraction_static="step.memory_share",
    sglang_max_running_requests=lambda run: run.step and run.rl.rollout.max_num_seqs,
    sglang_server_concurrency=("engine.max_num_seqs", 512),
)
CHECKPOINTS = keys(save="training.save", save_interval="saves.every")
LOGGING = keys(use_wandb=lambda run: run.training.wandb_project is not None, wandb_project="training.wandb_project",
               wandb_group="wandb_name", use_tensorboard=lambda run: run.training.tensorboard_dir is not None,
               tb_project_name=lambda run: run.training.tensorboard_dir and run.model.name,
               tb_experiment_name=lambda run: run.training.tensorboard_dir and (run.training.wandb_name or "symconfig"),
               )  # fmt: skip
# What is read alone; an option of Megatron-LM has another meaning.
READ = {"actor_num_nodes": Key("", 1), "actor_num_gpus_per_node": Key("", 8), "micro_batch_size": Key("", 1)}
SLIME = Trainer(name="slime", release="0.3.1", dashes=("--", "-"), keys=ROLLOUT | ALGORITHM | BATCH | SGLANG | READ)
