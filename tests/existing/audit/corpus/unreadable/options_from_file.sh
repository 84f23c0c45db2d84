#!/bin/bash
# One option a line in a file that is not here.
ARGS=()
while read -r line; do
    [[ "$line" == \#* ]] && continue
    ARGS+=($line)
done < "$HOME/options/7b.txt"
mapfile -t MORE < "$HOME/options/more.txt"

torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}" "${MORE[@]}" \
    --tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 --global-batch-size 64 --bf16
