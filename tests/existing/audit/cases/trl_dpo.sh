#!/bin/bash
MORE accelerate launch --config_file acc.yaml trl/scripts/dpo.py --model_name_or_path Qwen/Qwen3-8B \
    --dataset_name trl-lib/ultrafeedback_binarized --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \
    --max_length 2048
