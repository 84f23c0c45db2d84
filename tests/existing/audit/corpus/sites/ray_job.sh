#!/bin/bash
# The cluster of machines is Ray's; the first worker starts torchrun.
ENTRY="torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py"
MODEL="--num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28 \
--group-query-attention --num-query-groups 4 --add-qkv-bias --max-position-embeddings 131072 \
--position-embedding-type rope --rotary-base 1000000 --normalization RMSNorm --norm-epsilon 1e-6 --swiglu \
--disable-bias-linear --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
--vocab-size 152064 --make-vocab-size-divisible-by 128 --tokenizer-type NullTokenizer --mock-data"
RUN="--seq-length 8192 --micro-batch-size 1 --global-batch-size 32 --train-iters 100 --lr 1e-5 --bf16"
PARALLEL="--tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer"

CUDA_DEVICE_MAX_CONNECTIONS=1 ray job submit --address=http://127.0.0.1:8265 --no-wait -- \
    $ENTRY $MODEL $RUN $PARALLEL --overlap-grad-reduce --overlap-param-gather
