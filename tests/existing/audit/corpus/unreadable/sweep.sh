#!/bin/bash
# Three runs, one after another.
export CUDA_DEVICE_MAX_CONNECTIONS=1
for TP in 2 4 8; do
    torchrun --nproc_per_node 8 pretrain_gpt.py \
        --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 \
        --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope \
        --normalization RMSNorm --norm-epsilon 1e-5 --swiglu --disable-bias-linear \
        --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
        --vocab-size 32000 --make-vocab-size-divisible-by 1 --tokenizer-type NullTokenizer --mock-data \
        --tensor-model-parallel-size $TP --sequence-parallel \
        --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
        --micro-batch-size 1 --global-batch-size 64 --train-iters 20 --lr 2e-4 --bf16
done
