#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
cd "$(dirname "$0")"
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --yaml-cfg gpt_small.yaml
