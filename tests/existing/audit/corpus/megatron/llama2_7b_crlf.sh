#!/bin/bash
# Saved by an editor on Windows.
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=4
OPTIONS="--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32"
torchrun --nproc_per_node 4 pretrain_gpt.py $OPTIONS --tensor-model-parallel-size $TP --bf16
