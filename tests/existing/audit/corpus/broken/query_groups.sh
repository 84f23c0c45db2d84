#!/bin/bash
# Twelve query groups for 32 heads: parsed by every version.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 12 \
    --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope \
    --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
    --attention-dropout 0 --hidden-dropout 0 --vocab-size 32000 --tokenizer-type NullTokenizer --mock-data \
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 1 --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 1 --global-batch-size 64 --train-iters 1000 --lr 2e-4 --bf16
