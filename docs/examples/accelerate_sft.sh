#!/bin/bash
# LoRA on the 8B, one node; copied from the team page, then edited (sorry)
source .env
eval "$(conda shell.bash hook)" && conda activate sft
export WANDB_PROJECT=sft-8b HF_HUB_ENABLE_HF_TRANSFER=1
export TOKENIZERS_PARALLELISM=false

NUM_GPUS=$(nvidia-smi -L | wc -l)
[ "$NUM_GPUS" -eq 0 ] && NUM_GPUS=8
NUM_GPUS=8   # the line above is wrong inside the container

BATCH=2
ACCUM=8
case "${SIZE:-8b}" in
    8b)  MODEL=meta-llama/Llama-3.1-8B ;;
    70b) MODEL=meta-llama/Llama-3.1-70B; BATCH=1; ACCUM=16 ;;
    *)   echo "unknown size $SIZE" >&2; exit 2 ;;
esac

if [[ ! -d $HF_HOME ]]; then
    echo "HF_HOME=$HF_HOME is not there, models are downloaded again"
fi

PEFT="--use_peft True --lora_r 32 --lora_alpha 64 --lora_target_modules all-linear"
#PEFT=""
LOG="--logging_steps 10 --report_to wandb --run_name ${RUN_NAME:-$(whoami)-lora}"

accelerate launch --num_processes $NUM_GPUS --num_machines 1 --mixed_precision bf16 \
    --use_deepspeed --zero_stage 2 --main_process_port 29502 \
    sft.py \
    --model_name_or_path $MODEL \
    --dataset_name $DATASET \
    --deepspeed zero2.json \
    --max_seq_length 2048 --per_device_train_batch_size $BATCH --gradient_accumulation_steps $ACCUM \
    --learning_rate 2e-4 --num_train_epochs 3 --warmup_ratio 0.03 \
    --gradient_checkpointing True --bf16 True \
    $PEFT $LOG \
    --output_dir ./out/${RUN_NAME:-lora} "$@"
