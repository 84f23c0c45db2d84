#!/bin/bash
# An option was commented out inside the command: bash ends the command there.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 \
    --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope \
    --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
    --vocab-size 32000 --tokenizer-type NullTokenizer --mock-data \
    # --recompute-activations \
    --tensor-model-parallel-size 4 --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 1 --global-batch-size 64 --train-iters 1000 --lr 2e-4 --bf16
