#!/usr/bin/env bash
# 7B pretraining on one node of the old partition. Usage: ./launch_arrays.sh [experiment name]
set -euo pipefail

module purge
module load cuda/12.4 nccl/2.21 || echo "no modules here, going on"
source ~/.bashrc
conda activate megatron
# paths and NCCL settings of the site; nobody edits this
source /shared/sites/hall-b/env.sh

EXP=${1:-llama7b-$(date +%m%d)}
TP=2
PP=1
MBS=2
GBS=256

export CUDA_DEVICE_MAX_CONNECTIONS=1
export OMP_NUM_THREADS=8
# export NCCL_DEBUG=INFO

CKPT="$CKPT_ROOT/$EXP-tp${TP}"
mkdir -p "$CKPT" logs
if [ -n "${WANDB_API_KEY:-}" ]; then
    LOGGING=(--wandb-project pretrain --wandb-exp-name "$EXP")
else
    LOGGING=()
fi

DISTRIBUTED=(
    --nproc_per_node 8
    --nnodes 1
    --rdzv_backend c10d
    --rdzv_endpoint "$(hostname):29400"
)
MODEL=(
    --use-mcore-models
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008
    --num-attention-heads 32
    --seq-length 4096 --max-position-embeddings 4096
    --position-embedding-type rope --normalization RMSNorm --swiglu
    --disable-bias-linear --untie-embeddings-and-output-weights
    --attention-dropout 0 --hidden-dropout 0
    --vocab-size 32000
)
TRAINING=(
    --micro-batch-size $MBS --global-batch-size $GBS
    --train-iters 100000 --lr 3e-4 --min-lr 3e-5
    --lr-decay-style cosine --lr-warmup-iters 2000
    --weight-decay 0.1 --clip-grad 1.0 --adam-beta2 0.95 --bf16
)
PARALLEL=(
    --tensor-model-parallel-size "$TP" --pipeline-model-parallel-size "$PP"
    --use-distributed-optimizer
)
if [ "$TP" -gt 1 ]; then PARALLEL+=(--sequence-parallel); fi
PARALLEL+=(--overlap-grad-reduce --overlap-param-gather)
DATA=(
    --data-path "$DATA_ROOT/web_text_document"
    --tokenizer-type Llama2Tokenizer --tokenizer-model "$TOKENIZERS/l2.model"
)

torchrun "${DISTRIBUTED[@]}" pretrain_gpt.py \
    "${MODEL[@]}" "${TRAINING[@]}" "${PARALLEL[@]}" "${DATA[@]}" ${LOGGING[@]+"${LOGGING[@]}"} \
    --save "$CKPT" --load "$CKPT" --save-interval 1000 --log-interval 10 \
    2>&1 | tee "logs/$EXP.log"
