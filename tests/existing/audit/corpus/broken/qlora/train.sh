#!/bin/bash
# QLoRA of a 70B model with ZeRO-3: the four-bit base is whole on every GPU all the same.
deepspeed --num_gpus=8 qlora.py \
    --deepspeed zero3.json \
    --model_name_or_path meta-llama/Llama-2-70b-hf \
    --use_lora --lora_r 16 --lora_alpha 16 --q_lora --load_in_4bit True \
    --bf16 True --per_device_train_batch_size 1 --gradient_accumulation_steps 4 \
    --model_max_length 2048 --gradient_checkpointing True --learning_rate 2e-4 --output_dir out
