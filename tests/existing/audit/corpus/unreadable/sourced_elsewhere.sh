#!/bin/bash
# The degrees are in a file outside of this folder.
source /shared/site/parallel.conf
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
    --num-layers 40 --hidden-size 5120 --ffn-hidden-size 13824 --num-attention-heads 40 \
    --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope --vocab-size 32000 \
    --tokenizer-type NullTokenizer --mock-data \
    --tensor-model-parallel-size $SITE_TP --pipeline-model-parallel-size $SITE_PP \
    --micro-batch-size 1 --global-batch-size 64 --train-iters 1000 --lr 2e-4 --bf16
