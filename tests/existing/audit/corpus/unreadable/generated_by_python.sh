#!/bin/bash
# A program writes the options.
eval "$(python make_options.py --size 7b --format bash)"
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py $MODEL_OPTIONS \
    --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --train-iters 1000 --lr 2e-4 --bf16
