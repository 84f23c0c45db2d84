#!/bin/bash
# Seventy billion parameters on two machines of eight 80 GB GPUs, all activations kept.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
    --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 131072 \
    --position-embedding-type rope --rotary-base 500000 --use-rope-scaling \
    --normalization RMSNorm --norm-epsilon 1e-5 --swiglu --disable-bias-linear \
    --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
    --vocab-size 128256 --make-vocab-size-divisible-by 128 --tokenizer-type NullTokenizer --mock-data \
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 2 --global-batch-size 64 --train-iters 1000 --lr 1e-4 --bf16
