#!/bin/bash
# Eight GPUs, and groups of 3 x 2.
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=2
PP=3
torchrun --nproc_per_node 8 pretrain_gpt.py \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
    --vocab-size 50257 --tokenizer-type NullTokenizer --mock-data \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 2 --global-batch-size 64 --train-iters 1000 --lr 2e-4 --bf16
