#!/bin/bash
# One node of eight MI300X. EXPERIMENT=x TP=8 BS=64 ./rocm_llama2_70b.sh
export GPU_MAX_HW_QUEUES=2
export TORCH_NCCL_HIGH_PRIORITY=1
export CUDA_DEVICE_MAX_CONNECTIONS=1

time_stamp=$(date +"%Y-%m-%d_%H-%M-%S")
EXPERIMENT="${EXPERIMENT:-l70_${time_stamp}}"
TP="${TP:-8}"
PP="${PP:-1}"
MBS="${MBS:-1}"
BS="${BS:-64}"
SEQ_LENGTH="${SEQ_LENGTH:-4096}"
RECOMPUTE="${RECOMPUTE:-0}"
SEQ_PARALLEL="${SEQ_PARALLEL:-1}"
MODEL_SIZE="${MODEL_SIZE:-70}"

if [[ $MODEL_SIZE -eq 7 ]]; then
        HIDDEN_SIZE=4096
        FFN_HIDDEN_SIZE=11008
        NUM_LAYERS=32
        NUM_HEADS=32
elif [[ $MODEL_SIZE -eq 70 ]]; then
        HIDDEN_SIZE=8192
        FFN_HIDDEN_SIZE=28672
        NUM_LAYERS=80
        NUM_HEADS=64
        NUM_GROUPS=8
else
        echo "Model size not supported."
        exit 1
fi

GPT_ARGS="
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size ${PP} \
    --num-layers $NUM_LAYERS \
    --hidden-size $HIDDEN_SIZE \
    --ffn-hidden-size $FFN_HIDDEN_SIZE \
    --num-attention-heads $NUM_HEADS \
    --seq-length $SEQ_LENGTH \
    --max-position-embeddings $SEQ_LENGTH \
    --position-embedding-type rope \
    --normalization RMSNorm \
    --norm-epsilon 1e-5 \
    --swiglu \
    --disable-bias-linear \
    --untie-embeddings-and-output-weights \
    --attention-dropout 0 \
    --hidden-dropout 0 \
    --micro-batch-size $MBS \
    --global-batch-size $BS \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --bf16
"
if [ "$SEQ_PARALLEL" -eq 1 ]; then
    GPT_ARGS="$GPT_ARGS --sequence-parallel"
fi
if [ "$RECOMPUTE" -eq 1 ]; then
    GPT_ARGS="$GPT_ARGS --recompute-num-layers 80 --recompute-granularity full --recompute-method block"
fi
if [ "$NUM_GROUPS" ]; then
    GPT_ARGS="$GPT_ARGS --group-query-attention --num-query-groups $NUM_GROUPS"
fi

DISTRIBUTED_ARGS="--nproc_per_node 8 --nnodes 1 --master_addr localhost --master_port 23731"

run_cmd="
    torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \
        $GPT_ARGS \
        --vocab-size 32000 --make-vocab-size-divisible-by 1 --tokenizer-type NullTokenizer --mock-data \
        --train-iters 30 --lr 1e-4 --log-interval 1 \
"
eval $run_cmd 2>&1 | tee train_$EXPERIMENT.log
