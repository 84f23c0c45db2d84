#!/bin/bash
# The whole of training in one container on this machine.
IMAGE=registry.local/megatron:24.07
docker run --gpus all --rm --ipc=host --ulimit memlock=-1 \
    -v /data:/data -v "$PWD":/work -w /work \
    -e CUDA_DEVICE_MAX_CONNECTIONS=1 \
    $IMAGE bash -c "
        torchrun --nproc_per_node 8 pretrain_gpt.py \
            --num-layers 40 --hidden-size 5120 --ffn-hidden-size 13824 --num-attention-heads 40 \
            --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope \
            --normalization RMSNorm --norm-epsilon 1e-5 --swiglu --disable-bias-linear \
            --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
            --vocab-size 32000 --make-vocab-size-divisible-by 1 --tokenizer-type NullTokenizer --mock-data \
            --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --sequence-parallel \
            --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
            --micro-batch-size 1 --global-batch-size 64 --train-iters 50 --lr 3e-4 --bf16
    "
