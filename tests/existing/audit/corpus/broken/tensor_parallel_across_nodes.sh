#!/bin/bash
# Sixteen-way tensor parallelism on machines of eight: every layer waits for the network.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py \
    --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 \
    --vocab-size 50257 --tokenizer-type NullTokenizer --mock-data \
    --tensor-model-parallel-size 16 --pipeline-model-parallel-size 4 \
    --micro-batch-size 1 --global-batch-size 256 --train-iters 1000 --lr 6e-5 --bf16
