#!/bin/bash
read -r -d '' training_commands <<EOT
openrlhf.cli.PROGRAM \
   --data.max_len 2048 --train.batch_size 64 --train.micro_batch_size 2 --ds.zero_stage 3 \
   --model.model_name_or_path Qwen/Qwen3-8B --ds.packing_samples --model.gradient_checkpointing_enable MORE
EOT
if [[ ${1} != "slurm" ]]; then
    deepspeed --num_gpus 8 --module $training_commands
fi
