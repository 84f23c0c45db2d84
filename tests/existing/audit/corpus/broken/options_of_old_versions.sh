#!/bin/bash
# Written for a Megatron-LM of 2021, and never changed.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPT_ARGS="
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32
    --seq-length 4096 --max-position-embeddings 4096 --use-rotary-position-embeddings
    --normalization RMSNorm --norm-epsilon 1e-5 --swiglu --disable-bias-linear
    --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0
    --vocab-size 32000 --make-vocab-size-divisible-by 1 --tokenizer-type NullTokenizer --mock-data
"
python -m torch.distributed.launch --nproc_per_node 8 pretrain_gpt.py $GPT_ARGS \
    --model-parallel-size 2 --checkpoint-activations --checkpoint-num-layers 1 \
    --DDP-impl local --batch-size 1 --global-batch-size 64 --train-iters 1000 --lr 2e-4 --bf16
