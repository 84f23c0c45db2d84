#!/bin/bash
# The pipeline was taken out for a test, the layers of its last stage were not: a model of four layers is trained.
export CUDA_DEVICE_MAX_CONNECTIONS=1
PP=1
torchrun --nproc_per_node 8 pretrain_gpt.py \
    --num-layers 20 --decoder-last-pipeline-num-layers 4 --pipeline-model-parallel-size $PP \
    --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
    --vocab-size 50257 --tokenizer-type NullTokenizer --mock-data \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 4 --global-batch-size 64 --train-iters 1000 --lr 2e-4 --bf16
