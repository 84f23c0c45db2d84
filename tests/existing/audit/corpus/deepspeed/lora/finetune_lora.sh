#!/bin/bash
# Adapters for Qwen2.5 7B on one machine: bash finetune_lora.sh [-m MODEL] [-d DATA]
GPUS_PER_NODE=4
MODEL="Qwen/Qwen2.5-7B"
DATA="train.jsonl"
DS_CONFIG_PATH="zero2.json"

function usage() {
    echo "Usage: bash finetune_lora.sh [-m MODEL] [-d DATA]"
}

while [[ "$1" != "" ]]; do
    case $1 in
        -m | --model )
            shift
            MODEL=$1
            ;;
        -d | --data )
            shift
            DATA=$1
            ;;
        -h | --help )
            usage
            exit 0
            ;;
        * )
            echo "Unknown argument ${1}"
            exit 1
            ;;
    esac
    shift
done

DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes 1 \
    --master_addr localhost \
    --master_port 6001
"

torchrun $DISTRIBUTED_ARGS finetune.py \
    --model_name_or_path $MODEL \
    --data_path $DATA \
    --bf16 True \
    --output_dir out_qwen \
    --num_train_epochs 5 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 8 \
    --save_strategy "steps" \
    --learning_rate 3e-4 \
    --weight_decay 0.1 \
    --lr_scheduler_type "cosine" \
    --model_max_length 2048 \
    --lazy_preprocess True \
    --use_lora \
    --lora_r 64 \
    --lora_alpha 16 \
    --lora_dropout 0.05 \
    --lora_target q_proj,k_proj,v_proj,o_proj,up_proj,gate_proj,down_proj \
    --gradient_checkpointing \
    --deepspeed ${DS_CONFIG_PATH}
