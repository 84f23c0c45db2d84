#!/bin/bash
#PBS -N moe
#PBS -l select=4:ngpus=8
#PBS -l walltime=24:00:00
# options of the model are in a text file that the config team keeps
cd $PBS_O_WORKDIR
module load openmpi/5 cuda/12.6
source activate /apps/envs/mcore

ARGFILE=args/moe_8x7b.txt
[ -s "$ARGFILE" ] || { echo "no $ARGFILE"; exit 3; }
NP=32
EP=8

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_FUSED_ATTN=1

mpirun -np $NP --map-by ppr:8:node -x CUDA_DEVICE_MAX_CONNECTIONS -x NVTE_FUSED_ATTN \
    python pretrain_gpt.py $(grep -v '^#' $ARGFILE | xargs) \
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 \
    --expert-model-parallel-size $EP --sequence-parallel \
    --micro-batch-size 1 --global-batch-size 255 --seq-length 4096 \
    --use-distributed-optimizer --bf16
