#!/usr/bin/env bash
# Qwen3 30B-A3B. Options of this script: --tp N --ep N --gbs N; what follows -- goes to Megatron-LM.

tp=1
ep=8
gbs=256
rest=()

while [[ $# -gt 0 ]]; do
    case "$1" in
        --tp) tp="$2"; shift 2 ;;
        --ep) ep="$2"; shift 2 ;;
        --gbs) gbs="$2"; shift 2 ;;
        --) shift; rest=("$@"); break ;;
        *) echo "what is $1?" >&2; exit 2 ;;
    esac
done

model_options() {
    local layers=48
    MODEL=(
        --num-layers $layers --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32
        --kv-channels 128 --group-query-attention --num-query-groups 4 --qk-layernorm
        --max-position-embeddings 40960 --position-embedding-type rope --rotary-base 1000000
        --normalization RMSNorm --norm-epsilon 1e-6 --swiglu --disable-bias-linear
        --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0
        --vocab-size 151936 --make-vocab-size-divisible-by 128
        --num-experts 128 --moe-ffn-hidden-size 768 --moe-router-topk 8
        --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-3
        --moe-grouped-gemm --moe-token-dispatcher-type alltoall
    )
}

parallel_options() {
    local t=$1 e=$2
    PARALLEL=(--tensor-model-parallel-size "$t" --expert-model-parallel-size "$e" --expert-tensor-parallel-size 1)
    [[ "$t" -gt 1 ]] && PARALLEL+=(--sequence-parallel)
    PARALLEL+=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
}

main() {
    model_options
    parallel_options "$tp" "$ep"
    export CUDA_DEVICE_MAX_CONNECTIONS=1
    torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py "${MODEL[@]}" "${PARALLEL[@]}" \
        --seq-length 4096 --micro-batch-size 1 --global-batch-size "$gbs" --train-iters 800 --lr 1e-4 --bf16 \
        --mock-data --tokenizer-type NullTokenizer "${rest[@]}"
}

main
