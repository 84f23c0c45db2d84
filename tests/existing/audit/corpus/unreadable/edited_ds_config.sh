#!/bin/bash
# The DeepSpeed configuration is made from a template by sed.
BATCH=32
config=ds_${BATCH}.json
sed "s/BATCH/${BATCH}/" template.json | sed "s/ZERO/1/" > $config
deepspeed --num_gpus 8 pretrain_gpt.py \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
    --micro-batch-size 4 --global-batch-size $BATCH --train-iters 100 --lr 1e-4 --fp16 \
    --deepspeed --deepspeed_config $config
