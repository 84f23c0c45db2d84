#!/bin/bash
python3 -m openrlhf.cli.train_ppo_ray \
   --ref_num_nodes 1 --ref_num_gpus_per_node 8 --actor_num_nodes 1 --actor_num_gpus_per_node 8 \
   --vllm_num_engines 4 --vllm_tensor_parallel_size 2 --colocate_all_models --vllm_enable_sleep \
   --deepspeed_enable_sleep --vllm_gpu_memory_utilization 0.5 --pretrain Qwen/Qwen3-8B --remote_rm_url reward.py \
   --train_batch_size 256 --micro_train_batch_size 2 --rollout_batch_size 128 --micro_rollout_batch_size 4 \
   --n_samples_per_prompt 8 --prompt_max_len 1024 --generate_max_len 3072 --zero_stage 3 --bf16 \
   --advantage_estimator group_norm --gradient_checkpointing --packing_samples
