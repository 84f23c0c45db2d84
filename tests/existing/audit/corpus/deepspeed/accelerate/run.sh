#!/bin/bash
export WANDB_PROJECT=seventy
accelerate launch --use_deepspeed --deepspeed_config_file zero3_offload.json \
    --num_machines 2 --num_processes 16 --machine_rank ${RANK:-0} --main_process_ip ${HEAD:-n1} \
    sft.py \
    --deepspeed zero3_offload.json \
    --model_name_or_path meta-llama/Llama-2-70b-hf \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 4 \
    --max_seq_length 2048 \
    --bf16 --gradient_checkpointing \
    --learning_rate 1e-5 --output_dir out
