#!/bin/bash
# The experts' own tensor parallelism is not said, so it is 4, as for the rest: 4 x 8 does not divide 16 GPUs.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
    --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --kv-channels 128 \
    --group-query-attention --num-query-groups 4 --qk-layernorm \
    --seq-length 4096 --max-position-embeddings 40960 --position-embedding-type rope --rotary-base 1000000 \
    --normalization RMSNorm --norm-epsilon 1e-6 --swiglu --disable-bias-linear \
    --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
    --vocab-size 151936 --make-vocab-size-divisible-by 128 --tokenizer-type NullTokenizer --mock-data \
    --num-experts 128 --moe-ffn-hidden-size 768 --moe-router-topk 8 --moe-grouped-gemm \
    --moe-router-load-balancing-type aux_loss --moe-token-dispatcher-type alltoall \
    --tensor-model-parallel-size 4 --expert-model-parallel-size 8 --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 1 --global-batch-size 64 --train-iters 100 --lr 1e-4 --bf16
