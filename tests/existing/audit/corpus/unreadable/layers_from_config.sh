#!/bin/bash
# The model's numbers are taken from its config.json when the script runs.
CONFIG=$1/config.json
LAYERS=$(jq .num_hidden_layers $CONFIG)
HIDDEN=$(jq .hidden_size $CONFIG)
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py \
    --num-layers $LAYERS \
    --hidden-size $HIDDEN \
    --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope \
    --vocab-size 32000 --tokenizer-type NullTokenizer --mock-data \
    --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer \
    --micro-batch-size 1 --global-batch-size 64 --train-iters 1000 --lr 2e-4 --bf16
