#!/bin/bash
# no scheduler on these four machines: ssh to each, torchrun there
cd "$(dirname "$0")"
. ./hosts.env
ME=$(hostname -s)
PORT=29777
MEGATRON=/opt/megatron

HOSTS=(n01 n02 n03 n04)
NNODES=${#HOSTS[@]}
GPUS=8

# kill what the last run left
if [ "$1" = stop ]; then
    for h in "${HOSTS[@]}"; do ssh "$h" "pkill -9 -f pretrain_gpt.py"; done
    exit 0
fi

OPTS="--num-layers 48 --hidden-size 8192 --ffn-hidden-size 22016 --num-attention-heads 64
  --group-query-attention --num-query-groups 8
  --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope
  --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights
  --attention-dropout 0 --hidden-dropout 0 --vocab-size 32000 --bf16"
OPTS="$OPTS --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel"
OPTS="$OPTS --micro-batch-size 1 --global-batch-size 256 --use-distributed-optimizer"
OPTS="$OPTS --overlap-grad-reduce --overlap-param-gather"
OPTS="$OPTS --train-iters 20000 --lr 1.5e-4 --lr-decay-style cosine --lr-warmup-iters 200"
OPTS="$OPTS --data-path $DATA --tokenizer-type HuggingFaceTokenizer --tokenizer-model $TOK"
OPTS="$OPTS --save $CKPTS/48l --save-interval 500"

RANK=0
for h in "${HOSTS[@]}"; do
    echo "rank $RANK on $h"
    ssh -o StrictHostKeyChecking=no "$h" "cd $MEGATRON && CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_SOCKET_IFNAME=$IFACE \
        nohup torchrun --nnodes $NNODES --nproc_per_node $GPUS --node_rank $RANK --master_addr n01 --master_port $PORT \
        pretrain_gpt.py $(echo $OPTS)" > "log.$h" 2>&1 &
    RANK=$((RANK + 1))
done
wait
