#!/bin/bash
#SBATCH --job-name=llama-13b
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1

# Four nodes, as the script was handed over.
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_IB_TIMEOUT=22

TP=${TP:-2}     # inside a node
PP=4
MBS=4
GBS=${GBS:-256}

MODEL="
    --num-layers 40
    --hidden-size 5120
    --ffn-hidden-size 13824
    --num-attention-heads 40
    --seq-length 4096
    --max-position-embeddings 4096
    --normalization RMSNorm
    --norm-epsilon 1e-5
    --position-embedding-type rope
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0
    --hidden-dropout 0
    --vocab-size 32000
"

TRAIN=(
    --micro-batch-size "$MBS"
    --global-batch-size "$GBS"
    --train-iters 20000
    --lr 3e-4 --min-lr 3e-5    # from the 7B run
    --lr-decay-style cosine
    --bf16
    --tensor-model-parallel-size "$TP"
    --pipeline-model-parallel-size "$PP"
)

DATA=(
    --data-path "$DATA_ROOT/tokens"
    --tokenizer-type Llama2Tokenizer
    --tokenizer-model "$DATA_ROOT/tokenizer.model"
    --split 99,1,0
    --save "$CHECKPOINTS/13b" --save-interval 500
)

srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 8 \
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$(hostname):29500" \
    pretrain_gpt.py \
    $MODEL \
    "${TRAIN[@]}" \
    "${DATA[@]}" \
    --distributed-backend nccl
