#!/bin/bash
# Experts and tensor parallelism, but no sequence parallelism: new versions parse it and stop in the first step.
export CUDA_DEVICE_MAX_CONNECTIONS=1
OPTS="--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
 --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 32768 \
 --position-embedding-type rope --rotary-base 1000000 --normalization RMSNorm --norm-epsilon 1e-5 --swiglu \
 --disable-bias-linear --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
 --vocab-size 32000 --make-vocab-size-divisible-by 1 --tokenizer-type NullTokenizer --mock-data"
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py $OPTS \
    --num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall \
    --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.01 \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --expert-model-parallel-size 8 \
    --expert-tensor-parallel-size 1 \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 1 --global-batch-size 256 --train-iters 1000 --lr 1e-4 --bf16
