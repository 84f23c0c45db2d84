#!/bin/bash
# ./llama2_case_size.sh [7b|13b|70b]

SIZE=${1:-13b}

case $SIZE in
    7b)
        LAYERS=32; WIDTH=4096; FFN=11008; HEADS=32; KV=32
        TP=1; PP=1; NODES=1
        ;;
    13b)
        LAYERS=40; WIDTH=5120; FFN=13824; HEADS=40; KV=40
        TP=2; PP=1; NODES=2
        ;;
    70b|70B)
        LAYERS=80; WIDTH=8192; FFN=28672; HEADS=64; KV=8
        TP=8; PP=4; NODES=8
        ;;
    *)
        echo "no such size: $SIZE" >&2
        exit 1
        ;;
esac

GQA=""
if [ $KV -ne $HEADS ]; then
    GQA="--group-query-attention --num-query-groups $KV"
fi
SP=""
[ $TP -gt 1 ] && SP="--sequence-parallel"

export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes $NODES --nproc_per_node 8 --node_rank ${NODE_RANK:-0} \
         --master_addr ${MASTER_ADDR:-localhost} --master_port 6123 \
    pretrain_gpt.py \
    --num-layers $LAYERS --hidden-size $WIDTH --ffn-hidden-size $FFN --num-attention-heads $HEADS $GQA \
    --seq-length 4096 --max-position-embeddings 4096 \
    --position-embedding-type rope --normalization RMSNorm --norm-epsilon 1e-5 --swiglu \
    --disable-bias-linear --untie-embeddings-and-output-weights \
    --attention-dropout 0 --hidden-dropout 0 \
    --vocab-size 32000 --make-vocab-size-divisible-by 1 --tokenizer-type NullTokenizer --mock-data \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP $SP \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 1 --global-batch-size 512 --train-iters 12000 --lr 3e-4 --bf16
