#!/bin/bash
source ./common.sh
torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS
