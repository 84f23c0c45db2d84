#! /bin/bash
# 175 billion parameters, 1,024 GPUs, the pipeline interleaved.

GPUS_PER_NODE=8
NNODES=128
export CUDA_DEVICE_MAX_CONNECTIONS=1

DIST_OPTS="--nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES \
    --node_rank $NODE_RANK \
    --master_addr $MASTER_ADDR \
    --master_port 6500"

MODEL_OPTS=" \
    --num-layers 96 \
    --hidden-size 12288 \
    --num-attention-heads 96 \
    --seq-length 2048 \
    --max-position-embeddings 2048 \
    --position-embedding-type learned_absolute \
    --init-method-std 0.006 \
    --vocab-size 50257 \
    --make-vocab-size-divisible-by 128 \
    "

TRAIN_OPTS=" \
    --micro-batch-size 1 \
    --global-batch-size 1536 \
    --train-iters 90000 \
    --lr 6e-5 \
    --lr-decay-style cosine \
    --weight-decay 0.1 \
    --clip-grad 1.0 \
    --bf16 \
    "

PARALLEL_OPTS="--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16"
PARALLEL_OPTS="$PARALLEL_OPTS --num-layers-per-virtual-pipeline-stage 3"
PARALLEL_OPTS+=" --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"

DATA_OPTS="--mock-data --tokenizer-type NullTokenizer --split 98,1,1"

python -m torch.distributed.run $DIST_OPTS \
    pretrain_gpt.py \
    $MODEL_OPTS \
    $TRAIN_OPTS \
    $PARALLEL_OPTS \
    $DATA_OPTS \
    --recompute-granularity selective \
    --log-interval 10 2>&1 | tee train_175b.log
