#!/usr/bin/env bash
set -x

MODEL=${MODEL:-Qwen/Qwen3-8B}
SHARE=${SHARE:-0.85}

ACTOR=(
    actor_rollout_ref.actor.ppo_mini_batch_size=128
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.fsdp_config.param_offload=False
)

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files="$HOME/data/train.parquet" \
    data.val_files="$HOME/data/test.parquet" \
    data.train_batch_size=512 \
    data.max_prompt_length=1024 \
    data.max_response_length=8192 \
    actor_rollout_ref.model.path="$MODEL" \
    "${ACTOR[@]}" \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization="$SHARE" \
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=8192 \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=1 "$@"
