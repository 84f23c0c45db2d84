#!/bin/bash
# 11 layers in the first stage and 13 in the last of two: the other 24 are built nowhere.
export CUDA_DEVICE_MAX_CONNECTIONS=1
STAGES=(
    --pipeline-model-parallel-size 2
    --decoder-first-pipeline-num-layers 11
    --decoder-last-pipeline-num-layers 13
)
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py "${STAGES[@]}" \
    --tensor-model-parallel-size 1 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 \
    --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --kv-channels 128 \
    --group-query-attention --num-query-groups 4 --qk-layernorm \
    --seq-length 4096 --max-position-embeddings 40960 --position-embedding-type rope --rotary-base 1000000 \
    --normalization RMSNorm --norm-epsilon 1e-6 --swiglu --disable-bias-linear \
    --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
    --vocab-size 151936 --make-vocab-size-divisible-by 128 --tokenizer-type NullTokenizer --mock-data \
    --num-experts 128 --moe-ffn-hidden-size 768 --moe-router-topk 8 --moe-grouped-gemm \
    --moe-router-load-balancing-type aux_loss --moe-token-dispatcher-type alltoall \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 1 --global-batch-size 64 --train-iters 100 --lr 1e-4 --bf16
