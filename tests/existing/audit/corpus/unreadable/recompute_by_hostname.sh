#!/bin/bash
# The small machines recompute; which ones they are, only they know.
export CUDA_DEVICE_MAX_CONNECTIONS=1
MEM=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)
EXTRA=""
if [ "$MEM" -lt 50000 ]; then
    EXTRA="--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
fi
torchrun --nproc_per_node 8 pretrain_gpt.py $EXTRA \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 \
    --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope --vocab-size 32000 \
    --tokenizer-type NullTokenizer --mock-data --tensor-model-parallel-size 2 --sequence-parallel \
    --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 64 --train-iters 1000 --lr 2e-4 --bf16
