#!/usr/bin/env bash
set -euo pipefail
# A recipe of Megatron-Bridge, with what differs on our machines.
RECIPE=llama3_8b_pretrain_config
TP=2
SEQ=8192

OVERRIDES="\
    model.tensor_model_parallel_size=$TP \
    model.pipeline_model_parallel_size=1 \
    model.context_parallel_size=2 \
    model.sequence_parallel=true \
    model.seq_length=$SEQ \
    dataset.seq_length=$SEQ \
    train.micro_batch_size=1 \
    train.global_batch_size=128 \
    train.train_iters=400 \
    optimizer.lr=2e-4 \
    ddp.overlap_grad_reduce=true \
    ddp.overlap_param_gather=true"

uv run python -m torch.distributed.run --nnodes=2 --nproc_per_node=8 scripts/training/run_recipe.py \
    --recipe $RECIPE \
    $OVERRIDES \
    checkpoint.save="${RESULTS:-/results}/llama3_8b_tp${TP}"
