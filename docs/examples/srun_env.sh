#!/bin/bash
#SBATCH --job-name=13b
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --time=2-00:00:00
#SBATCH --output=slurm-%x-%j.out
#SBATCH --exclusive

# degrees of the day: TP, PP, MBS (ask the infra channel)
source "$SLURM_SUBMIT_DIR/env/parallel.env"
. /etc/profile.d/modules.sh
module load singularity

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
WORLD=$((SLURM_NNODES * GPUS_PER_NODE))
echo "starting on $WORLD GPUs, head $MASTER_ADDR"

GBS=512
[ "$WORLD" -ge 64 ] && GBS=1024

MODEL_ARGS="--num-layers 40 --hidden-size 5120 --ffn-hidden-size 13824 --num-attention-heads 40 \
    --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope \
    --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 32000"
# overlap needs the connections variable above, see the wiki
ARGS="$MODEL_ARGS --bf16 \
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP:-1} \
    --micro-batch-size ${MBS:-1} --global-batch-size $GBS --use-distributed-optimizer --overlap-grad-reduce \
    --train-iters 50000 --lr 2e-4 --lr-decay-style cosine --lr-warmup-iters 500 \
    --save ${SAVE_DIR:-/scratch/$USER/13b} --save-interval 500 \
    --data-path $DATA_PREFIX --tokenizer-type GPT2BPETokenizer"
[ "$DEBUG" = 1 ] && ARGS="$ARGS --log-interval 1 --timing-log-level 2"

srun --kill-on-bad-exit=1 --container-image=/images/mcore-24.09.sqsh bash -c "
    cd /opt/Megatron-LM && \
    torchrun --nnodes $SLURM_NNODES --nproc_per_node $GPUS_PER_NODE \
        --node_rank \$SLURM_PROCID --master_addr $MASTER_ADDR --master_port $MASTER_PORT \
        pretrain_gpt.py $ARGS
"
