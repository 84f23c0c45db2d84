#!/bin/bash
# sh qwen25_positional.sh PLACE SIZE MICRO GLOBAL SEQ PRECISION TP PP SP DO AC
# PLACE: box (this machine) or cloud (a job of several machines)
set -e
PLACE=$1
HERE="$( cd "$( dirname "$0" )" && pwd )"
TOP=$( dirname ${HERE} )
export PYTHONPATH=${TOP}:${TOP}/backends/megatron:$PYTHONPATH
export CUDA_DEVICE_MAX_CONNECTIONS=1

if [ -z ${AC_LAYERS} ];then
    AC_LAYERS=1
fi

if [ $PLACE = box ]; then
    MASTER_ADDR=localhost
    MASTER_PORT=$(shuf -n 1 -i 20000-60000)
    NNODES=1
    NODE_RANK=0
    GPUS_PER_NODE=8
elif [ $PLACE = cloud ]; then
    NNODES=${WORLD_SIZE}
    NODE_RANK=${RANK}
    GPUS_PER_NODE=${KUBERNETES_GPUS}
fi

SIZE=$2
BATCH_SIZE=$3
GLOBAL_BATCH_SIZE=$4
SEQ_LEN=$5
PR=$6
TP=$7
PP=$8
SP=$9
DO=${10}
AC=${11}

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT"

if [ $SIZE = 7B ]; then

LAYERS=28
HIDDEN=3584
HEADS=28
FFN=18944
KV_HEADS=4
tie_option=" --untie-embeddings-and-output-weights"

elif [ $SIZE = 1.5B ]; then

LAYERS=28
HIDDEN=1536
HEADS=12
FFN=8960
KV_HEADS=2
tie_option=""

fi

if [ $AC = full ]; then
    left=$(( ($LAYERS / $PP) % ${AC_LAYERS} ))
    if [ $left != 0 ]; then
        echo "layers of a stage must be a multiple of AC_LAYERS"
        exit -1
    fi
    ac_options=" \
        --recompute-method uniform \
        --recompute-num-layers ${AC_LAYERS} \
        --recompute-granularity full"
elif [ $AC = sel ]; then
    ac_options=" \
        --recompute-activations"
else
    ac_options=""
fi

if [ $PR = bf16 ]; then
    pr_options=" \
        --bf16"
elif [ $PR = fp16 ]; then
    pr_options=" \
        --fp16"
fi

if [ $DO = true ]; then
    do_options=" \
        --use-distributed-optimizer"
else
    do_options=" \
        "
fi

if [ $SP = true ] && [ $TP -gt 1 ]; then
    sp_options=" \
        --sequence-parallel"
else
    sp_options=""
fi

hide=$(( ($TP > 1) ? 1 : 0 ))
overlap_options=" --overlap-grad-reduce --overlap-param-gather"
if [ $hide -eq 1 ]; then
    overlap_options="${overlap_options} --tp-comm-overlap"
fi

stamp=$(date "+%Y%m%d-%H%M")
NAME="qwen25-${SIZE}-tp-${TP}-pp-${PP}-${stamp}"
mkdir -p logs/${NAME}

options="  \
        --save ckpt/${NAME} \
        --save-interval 500 \
        --tensorboard-dir logs/${NAME} \
        --lr 1e-5 \
        --min-lr 1e-6 \
        --lr-decay-style cosine \
        --weight-decay 0.1 \
        --clip-grad 1.0 \
        --attention-dropout 0.0 \
        --hidden-dropout 0.0 \
        --train-iters 2500 \
        --micro-batch-size ${BATCH_SIZE} \
        --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --num-layers ${LAYERS} \
        --hidden-size ${HIDDEN} \
        --num-attention-heads ${HEADS} \
        --ffn-hidden-size ${FFN} \
        --group-query-attention \
        --num-query-groups ${KV_HEADS} \
        --seq-length ${SEQ_LEN} \
        --max-position-embeddings 131072 \
        --tensor-model-parallel-size ${TP} \
        --pipeline-model-parallel-size ${PP} \
        --swiglu \
        --normalization RMSNorm \
        --norm-epsilon 1e-6 \
        --position-embedding-type rope \
        --rotary-base 1000000 \
        --disable-bias-linear \
        --add-qkv-bias \
        --vocab-size 152064 \
        --make-vocab-size-divisible-by 128 \
        --tokenizer-type NullTokenizer \
        --mock-data \
        --transformer-impl transformer_engine \
        "

run_cmd="torchrun $DISTRIBUTED_ARGS pretrain_gpt.py
 ${options} ${pr_options} ${ac_options} ${do_options} ${sp_options} ${overlap_options} ${tie_option}"

echo ${run_cmd}
eval ${run_cmd}
set +x
