#!/usr/bin/env bash
# the options come from a YAML by way of a small Python program
set -euo pipefail
export PYTHONPATH=/code/megatron:${PYTHONPATH:-}
export CUDA_DEVICE_MAX_CONNECTIONS=1

CONFIG=${1:-configs/7b.yaml}
NODES=${NODES:-2}
GPUS=8
log() { printf '[%s] %s\n' "$(date +%T)" "$*"; }

log "building the command from $CONFIG"
eval "$(python3 tools/export_env.py --config "$CONFIG")"
MODEL_ARGS=$(python3 tools/build_args.py --config "$CONFIG" --nodes "$NODES")

TP=2
PP=2
MBS=1
if [[ "$NODES" -gt 4 ]]; then MBS=2; fi

CMD="torchrun --nnodes $NODES --nproc_per_node $GPUS --rdzv_id $RUN_ID --rdzv_backend c10d --rdzv_endpoint $HEAD:29500"
CMD="$CMD pretrain_gpt.py $MODEL_ARGS"
CMD+=" --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP"
CMD+=" --micro-batch-size $MBS --global-batch-size 128 --seq-length 4096"
CMD+=" --bf16 --use-distributed-optimizer"

log "$CMD"
if [ "${DRY_RUN:-0}" = 1 ]; then exit 0; fi
$CMD
