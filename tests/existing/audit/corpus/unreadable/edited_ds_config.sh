#!/bin/bash
# The DeepSpeed configuration is made from a template by sed.
BATCH=32
config=ds_${BATCH}.json
sed "s/BATCH/${BATCH}/" template.json | sed "s/ZERO/1/" > $config
deepspeed --num_gpus 8 train.py --model_name_or_path meta-llama/Llama-2-7b-hf --seq-length 2048 --lr 1e-4 \
    --deepspeed --deepspeed_config $config
