#!/bin/bash
# 405B. The arguments are gathered in loops over lists that stand here.
export CUDA_DEVICE_MAX_CONNECTIONS=1

SWITCHES="group-query-attention swiglu disable-bias-linear untie-embeddings-and-output-weights use-rope-scaling
          sequence-parallel use-distributed-optimizer overlap-grad-reduce overlap-param-gather bf16 mock-data"
declare -A VALUE=(
    [num-layers]=126
    [hidden-size]=16384
    [ffn-hidden-size]=53248
    [num-attention-heads]=128
    [num-query-groups]=8
    [seq-length]=8192
    [max-position-embeddings]=131072
    [position-embedding-type]=rope
    [rotary-base]=500000
    [normalization]=RMSNorm
    [norm-epsilon]=1e-5
    [attention-dropout]=0
    [hidden-dropout]=0
    [vocab-size]=128256
    [make-vocab-size-divisible-by]=128
    [tokenizer-type]=NullTokenizer
    [tensor-model-parallel-size]=8
    [pipeline-model-parallel-size]=16
    [num-virtual-stages-per-pipeline-rank]=8
    [account-for-embedding-in-pipeline-split]=
    [account-for-loss-in-pipeline-split]=
    [micro-batch-size]=1
    [global-batch-size]=256
    [train-iters]=600
    [lr]=8e-5
)

ARGS=()
for s in $SWITCHES; do
    ARGS+=("--$s")
done
for name in num-layers hidden-size ffn-hidden-size num-attention-heads num-query-groups seq-length \
            max-position-embeddings position-embedding-type rotary-base normalization norm-epsilon \
            attention-dropout hidden-dropout vocab-size make-vocab-size-divisible-by tokenizer-type \
            tensor-model-parallel-size pipeline-model-parallel-size num-virtual-stages-per-pipeline-rank \
            account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split \
            micro-batch-size global-batch-size train-iters lr; do
    if [[ -n "${VALUE[$name]}" ]]; then
        ARGS+=("--$name" "${VALUE[$name]}")
    else
        ARGS+=("--$name")
    fi
done

exec torchrun --nnodes 128 --nproc-per-node 8 --rdzv-id llama405 --rdzv-backend c10d \
    --rdzv-endpoint head:29500 pretrain_gpt.py "${ARGS[@]}"
