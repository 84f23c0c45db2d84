#!/bin/bash
# The model and the machine are in files of their own.
HERE=$(dirname "${BASH_SOURCE[0]}")
source "$HERE/env.sh"
. $HERE/model_${MODEL:-13b}.sh

PARALLEL_ARGS=(
  --tensor-model-parallel-size 4
  --pipeline-model-parallel-size 2
  --sequence-parallel
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
)

echo "starting $MODEL_NAME on $((NNODES * NPROC)) GPUs"
torchrun --nnodes $NNODES --nproc_per_node $NPROC --node_rank ${RANK:-0} --master_addr ${MASTER_ADDR:-n0} \
  pretrain_gpt.py $MODEL_ARGS "${PARALLEL_ARGS[@]}" \
  --seq-length 4096 --micro-batch-size 2 --global-batch-size 256 --train-iters 4000 --lr 1e-4 --bf16 \
  --tokenizer-type NullTokenizer --mock-data
