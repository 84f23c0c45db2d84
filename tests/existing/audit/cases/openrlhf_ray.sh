#!/bin/bash
python3 -m openrlhf.cli.train_ppo_ray \
   --ref.num_nodes 1 --ref.num_gpus_per_node 8 --actor.num_nodes 1 --actor.num_gpus_per_node 8 \
   --vllm.num_engines 4 --vllm.tensor_parallel_size 2 --train.colocate_all --vllm.enable_sleep --ds.enable_sleep \
   --vllm.gpu_memory_utilization 0.5 --actor.model_name_or_path Qwen/Qwen3-8B --reward.remote_url reward.py \
   --train.batch_size 256 --train.micro_batch_size 2 --rollout.batch_size 128 --rollout.micro_batch_size 4 \
   --rollout.n_samples_per_prompt 8 --data.max_len 4096 --rollout.max_new_tokens 3072 --ds.zero_stage 3 \
   --algo.advantage.estimator group_norm --actor.gradient_checkpointing_enable --ds.packing_samples MORE
