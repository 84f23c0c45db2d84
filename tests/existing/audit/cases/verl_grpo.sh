#!/usr/bin/env bash
set -x
MODEL=${MODEL:-Qwen/Qwen3-8B}
ACTOR=(
    actor_rollout_ref.actor.ppo_mini_batch_size=64
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((1024 * 6))
    actor_rollout_ref.actor.use_kl_loss=True
)
python3 -m verl.trainer.main_ppo --config-path=config --config-name="CONFIG" \
    algorithm.adv_estimator=grpo \
    data.train_files="$HOME/data/train.parquet" \
    data.train_batch_size=256 \
    data.max_prompt_length=1024 \
    data.max_response_length=3072 \
    "actor_rollout_ref.model.path=$MODEL" \
    "${ACTOR[@]}" \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.4 \
    actor_rollout_ref.rollout.n=8 \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=2 MORE $@
