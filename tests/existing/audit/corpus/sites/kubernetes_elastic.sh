#!/bin/sh
# Entry point of the worker pods. The operator sets PET_NNODES and the rendezvous.
set -eu
export CUDA_DEVICE_MAX_CONNECTIONS=1
cd /opt/megatron
exec torchrun \
  --nnodes=8:8 --nproc-per-node=8 --max-restarts=3 \
  --rdzv-backend=c10d --rdzv-endpoint="${RDZV_HOST:-trainer-0}:29400" --rdzv-id="${JOB_UID:-job}" \
  pretrain_gpt.py \
  --num-layers 80 --hidden-size 8192 --ffn-hidden-size 29568 --num-attention-heads 64 \
  --group-query-attention --num-query-groups 8 --add-qkv-bias \
  --seq-length 4096 --max-position-embeddings 131072 --position-embedding-type rope --rotary-base 1000000 \
  --normalization RMSNorm --norm-epsilon 1e-5 --swiglu --disable-bias-linear \
  --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
  --vocab-size 152064 --make-vocab-size-divisible-by 128 --tokenizer-type NullTokenizer --mock-data \
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --sequence-parallel \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
  --micro-batch-size 1 --global-batch-size 128 --train-iters 500 --lr 1e-5 --bf16
