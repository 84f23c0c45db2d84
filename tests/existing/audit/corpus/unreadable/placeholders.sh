#!/bin/bash
# To be filled in by whoever copies it.
NUM_GPUS=<number of GPUs of a machine>
CHECKPOINTS=<where to save>
TP=<tensor parallel size>
export CUDA_DEVICE_MAX_CONNECTIONS=1

torchrun --nproc_per_node $NUM_GPUS pretrain_gpt.py \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
    --tensor-model-parallel-size $TP --micro-batch-size 4 --global-batch-size 64 --train-iters 100 --lr 1e-4 --fp16 \
    --save $CHECKPOINTS
