#!/bin/bash
# bf16 was added, fp16 not taken out.
export CUDA_DEVICE_MAX_CONNECTIONS=1
MIXED="--fp16 --loss-scale 4096"
torchrun --nproc_per_node 8 pretrain_gpt.py $MIXED \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
    --vocab-size 50257 --tokenizer-type NullTokenizer --mock-data \
    --micro-batch-size 4 --global-batch-size 64 --train-iters 1000 --lr 2e-4 --bf16
