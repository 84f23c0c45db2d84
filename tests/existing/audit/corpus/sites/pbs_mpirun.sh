#!/bin/bash
#PBS -N mixtral22
#PBS -l select=8:ngpus=8:mpiprocs=8
#PBS -l walltime=12:00:00
#PBS -q large
cd $PBS_O_WORKDIR
export MASTER_ADDR=$(head -n 1 $PBS_NODEFILE)
export MASTER_PORT=24500
NGPUS=64

mpirun -np $NGPUS --map-by ppr:8:node -x MASTER_ADDR -x MASTER_PORT -x CUDA_DEVICE_MAX_CONNECTIONS=1 \
    python pretrain_gpt.py \
    --num-layers 56 --hidden-size 6144 --ffn-hidden-size 16384 --num-attention-heads 48 --kv-channels 128 \
    --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 65536 \
    --position-embedding-type rope --rotary-base 1000000 --normalization RMSNorm --norm-epsilon 1e-5 \
    --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
    --vocab-size 32000 --make-vocab-size-divisible-by 128 --tokenizer-type NullTokenizer --mock-data \
    --num-experts 8 --moe-router-topk 2 --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-3 \
    --moe-grouped-gemm --moe-token-dispatcher-type alltoall --expert-model-parallel-size 8 \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 1 --global-batch-size 256 --train-iters 1000 --lr 1e-4 --bf16 > run.log 2>&1 &
wait
