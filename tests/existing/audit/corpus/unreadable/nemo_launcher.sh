#!/bin/bash
LAUNCHER_DIR=${LAUNCHER_DIR:-/opt/nemo-launcher}

HYDRA_FULL_ERROR=1 python3 ${LAUNCHER_DIR}/launcher_scripts/main.py \
training=llama/llama2_13b \
stages=[training] \
data_dir=${DATA_DIR:-/data} \
base_results_dir=/results \
training.run.name="llama2_13b_two_nodes" \
training.trainer.num_nodes=2 \
training.trainer.devices=8 \
training.model.tensor_model_parallel_size=2 \
training.model.pipeline_model_parallel_size=2 \
training.model.micro_batch_size=1 \
training.model.global_batch_size=128 \
training.model.encoder_seq_length=4096 \
training.model.sequence_parallel=True \
+training.model.optim.grad_sync_dtype=bf16 \
~training.model.nsys_profile
