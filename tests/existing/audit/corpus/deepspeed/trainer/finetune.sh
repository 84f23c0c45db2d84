#!/bin/bash
# Full fine-tuning of Llama 2 13B with Transformers' Trainer.
MODEL=meta-llama/Llama-2-13b-hf
DATA=${DATA:-./data/chat.json}

deepspeed --num_gpus 8 --master_port 61000 train.py \
    --deepspeed zero3.json \
    --model_name_or_path $MODEL \
    --data_path $DATA \
    --bf16 True \
    --output_dir ./out/chat-13b \
    --num_train_epochs 3 \
    --per_device_train_batch_size 2 \
    --per_device_eval_batch_size 2 \
    --gradient_accumulation_steps 8 \
    --save_strategy "steps" \
    --save_steps 500 \
    --learning_rate 2e-5 \
    --weight_decay 0. \
    --warmup_ratio 0.03 \
    --lr_scheduler_type "cosine" \
    --model_max_length 4096 \
    --gradient_checkpointing True \
    --tf32 True
