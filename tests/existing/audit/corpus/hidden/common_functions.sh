#!/bin/bash -e
# all launchers of the group share common.sh: colours, log(), setup_nccl, die()
SELF=$(readlink -f "$0")
ROOT=$(dirname "$SELF")
WIDTH=4096
DEPTH=32
source "$ROOT/../shared/common.sh"
source "$ROOT/model_sizes.sh"

die_if_empty() { [ -n "${!1}" ] || { echo "$1 is empty" >&2; exit 9; }; }

GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NNODES=${SLURM_NNODES:-1}
TP=4; PP=1; CP=1
MBS=1; GBS=256
SEQ=8192

setup_nccl
log "hello from $(hostname)"
die_if_empty DATA

ARGS=(
  --num-layers $DEPTH --hidden-size $WIDTH --ffn-hidden-size $FFN --num-attention-heads 32
  --group-query-attention --num-query-groups 8
  --seq-length $SEQ --max-position-embeddings $SEQ --position-embedding-type rope
  --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights
  --vocab-size 128256 --attention-dropout 0 --hidden-dropout 0
)
for d in tensor:$TP pipeline:$PP; do
  ARGS+=("--${d%%:*}-model-parallel-size" "${d##*:}")
done
ARGS+=(--context-parallel-size $CP --micro-batch-size $MBS --global-batch-size $GBS)
ARGS+=(--bf16 --use-distributed-optimizer --sequence-parallel)
[[ $TP -eq 1 ]] && ARGS=("${ARGS[@]/--sequence-parallel/}")

torchrun --nnodes $NNODES --nproc_per_node $GPUS_PER_NODE $ROOT/pretrain_gpt.py "${ARGS[@]}" \
  --data-path $DATA --train-iters 1000 --lr 3e-4 --mock-data
