#!/bin/bash
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B \
    --external_plugins plugin.py --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.4 \
    --vllm_max_model_len 4096 --max_length 1024 --max_completion_length 2048 --tuner_type full \
    --torch_dtype bfloat16 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --num_generations 8 \
    --deepspeed zero3 MORE
