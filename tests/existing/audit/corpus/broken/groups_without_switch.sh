#!/bin/bash
# The number of groups alone changes nothing: every head has its own keys and values, and the checkpoint does not fit.
export CUDA_DEVICE_MAX_CONNECTIONS=1
KV=8
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
    --num-query-groups ${KV} \
    --seq-length 8192 --max-position-embeddings 131072 --position-embedding-type rope --rotary-base 500000 \
    --use-rope-scaling --normalization RMSNorm --norm-epsilon 1e-5 --swiglu --disable-bias-linear \
    --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
    --vocab-size 128256 --tokenizer-type NullTokenizer --mock-data \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 1 --global-batch-size 64 --train-iters 1000 --lr 2e-4 --bf16
