#!/bin/bash
# Continues Llama 2 7B on our own text, one node.
# Usage: llama2_7b_arrays.sh DATA_PREFIX CHECKPOINT_FOLDER TOKENIZER
set -e

export CUDA_DEVICE_MAX_CONNECTIONS=1

DATA_PREFIX=$1
CHECKPOINTS=$2
TOKENIZER=$3

NGPUS=8

LAUNCH=(
    --standalone
    --nproc_per_node $NGPUS
)

ARCHITECTURE=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 11008
    --num-attention-heads 32
    --seq-length 4096
    --max-position-embeddings 4096
    --position-embedding-type rope   # and no table of positions
    --rotary-base 10000
    --normalization RMSNorm
    --norm-epsilon 1e-5
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --vocab-size 32000
    --make-vocab-size-divisible-by 1
)

OPTIMISATION=(
    --micro-batch-size 1
    --global-batch-size 128
    --train-iters 24000
    --lr 1.5e-4
    --min-lr 1.5e-5
    --lr-decay-style cosine
    --lr-warmup-iters 400
    --weight-decay 0.1
    --clip-grad 1.0
    --bf16
)

SPLIT_OF_THE_MODEL=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 1
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)

FILES=(
    --data-path "$DATA_PREFIX"
    --tokenizer-type Llama2Tokenizer
    --tokenizer-model "$TOKENIZER"
    --split 990,8,2
    --save "$CHECKPOINTS"
    --load "$CHECKPOINTS"
    --save-interval 1000
)

torchrun ${LAUNCH[@]} pretrain_gpt.py \
    ${ARCHITECTURE[@]} \
    ${OPTIMISATION[@]} \
    ${SPLIT_OF_THE_MODEL[@]} \
    "${FILES[@]}"
