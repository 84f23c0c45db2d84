#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=8 --gpus-per-node=8 --job-name=seventy
# A container for every rank; the options are one long string in an environment variable.

DIR=`dirname $0`
DATETIME=`date +'date_%y-%m-%d_time_%H-%M-%S'`
mkdir -p $DIR/logs

options=" \
    --use-mcore-models --transformer-impl transformer_engine \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
    --group-query-attention --num-query-groups 8 \
    --seq-length 4096 --max-position-embeddings 4096 \
    --position-embedding-type rope --normalization RMSNorm --norm-epsilon 1e-5 \
    --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
    --attention-dropout 0.0 --hidden-dropout 0.0 \
    --vocab-size 32000 --make-vocab-size-divisible-by 1 --tokenizer-type NullTokenizer --mock-data \
    --recompute-granularity full --recompute-method block --recompute-num-layers 10 \
    --micro-batch-size 1 --global-batch-size 256 --train-iters 2000 --lr 1e-4 --bf16"

run_cmd="CUDA_DEVICE_MAX_CONNECTIONS=1 python -u /workspace/megatron/pretrain_gpt.py ${options}"

srun -l \
     --container-image /images/pytorch.sqsh \
     --container-mounts "/lustre:/lustre,$DIR:/workspace" \
     --output=$DIR/logs/%x_%j_$DATETIME.log sh -c "${run_cmd}"
