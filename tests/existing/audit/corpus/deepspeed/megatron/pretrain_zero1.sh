#!/bin/bash
# Megatron-DeepSpeed: the model is Megatron's, the optimizer DeepSpeed's.
set -ex
DS_CONFIG=ds_config.json
TP=2
PP=1
ZERO_STAGE=1
MICRO=2
GLOBAL=64

cat <<EOT > $DS_CONFIG
{
  "train_batch_size" : $GLOBAL,
  "train_micro_batch_size_per_gpu": $MICRO,
  "steps_per_print": 1,
  "zero_optimization": {"stage": $ZERO_STAGE},
  "bf16": {"enabled": true}
}
EOT

ds_args=""
ds_args=" --deepspeed ${ds_args}"
ds_args=" --deepspeed_config=$DS_CONFIG ${ds_args}"
ds_args=" --zero-stage=$ZERO_STAGE ${ds_args}"
if [ "${CHECKPOINTING:-false}" = "true" ]; then
  ds_args="--deepspeed-activation-checkpointing ${ds_args}"
fi

deepspeed --num_nodes 2 --num_gpus 8 --hostfile hosts pretrain_gpt.py \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --no-pipeline-parallel \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 \
    --seq-length 2048 --max-position-embeddings 2048 \
    --use-rotary-position-embeddings --untie-embeddings-and-output-weights --swiglu --normalization rmsnorm \
    --disable-bias-linear --attention-dropout 0 --hidden-dropout 0 --no-query-key-layer-scaling \
    --vocab-size 32000 --make-vocab-size-divisible-by 1 \
    --micro-batch-size $MICRO --global-batch-size $GLOBAL --train-iters 1000 --lr 3e-4 --bf16 \
    $ds_args
