#!/usr/bin/env bash
# Mixtral 8x7B. Every degree can be set from outside: TP=1 EP=4 ./mixtral_8x7b_env_defaults.sh
set -euo pipefail

TP=${TP:-2}
PP=${PP:-4}
EP=${EP:-8}
: "${MBS:=1}"
: "${GBS:=512}"
NODES=${NODES:-8}
GPUS=${GPUS:-8}

export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}

declare -a MODEL=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --seq-length 4096 --max-position-embeddings 32768
    --position-embedding-type rope --rotary-base 1000000
    --normalization RMSNorm --norm-epsilon 1e-5 --swiglu --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0
    --vocab-size 32000 --make-vocab-size-divisible-by 1
)

declare -a EXPERTS=(
    --num-experts 8
    --moe-router-topk 2
    --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 2e-2
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
    --expert-model-parallel-size "$EP"
    --expert-tensor-parallel-size 1
)

declare -a PARALLEL=(
    --tensor-model-parallel-size "$TP"
    --pipeline-model-parallel-size "$PP"
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
if (( TP > 1 )); then
    PARALLEL+=(--sequence-parallel)
fi

torchrun --nnodes "$NODES" --nproc_per_node "$GPUS" \
    --rdzv_backend c10d --rdzv_endpoint "${MASTER_ADDR:-localhost}:${MASTER_PORT:-29511}" \
    "${MEGATRON:-/opt/megatron}/pretrain_gpt.py" \
    "${MODEL[@]}" "${EXPERTS[@]}" "${PARALLEL[@]}" \
    --micro-batch-size "$MBS" --global-batch-size "$GBS" \
    --train-iters 10000 --lr 1e-4 --min-lr 1e-5 --lr-decay-style cosine --bf16 \
    --mock-data --tokenizer-type NullTokenizer \
    "$@"
