#!/bin/bash
# DeepSeek-V3 with its prediction layer; stages laid out by hand.
export CUDA_DEVICE_MAX_CONNECTIONS=1 NVTE_FWD_LAYERNORM_SM_MARGIN=8

layout='Et*3|(tt|)*29m|L'   # replaced below, see the note
# Sixteen stages: the first holds the embedding, the last the prediction layer and the loss.
layout='Etttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tmL'

MODEL=(
  --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128
  --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512
  --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --kv-channels 128 --qk-layernorm
  --position-embedding-type rope --rope-type yarn --rotary-base 10000 --rotary-scaling-factor 40
  --mscale 1.0 --mscale-all-dim 1.0 --max-position-embeddings 163840
  --normalization RMSNorm --norm-epsilon 1e-6 --swiglu --disable-bias-linear
  --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0
  --vocab-size 129280 --make-vocab-size-divisible-by 128
  --mtp-num-layers 1 --mtp-loss-scaling-factor 0.1
)
MOE=(
  --num-experts 256 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048
  --moe-layer-freq "([0]*3+[1]*58)" --moe-router-topk 8 --moe-router-score-function sigmoid
  --moe-router-num-groups 8 --moe-router-group-topk 4 --moe-router-topk-scaling-factor 2.5
  --moe-router-enable-expert-bias --moe-router-bias-update-rate 1e-3 --moe-router-dtype fp32
  --moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 1e-3
  --moe-grouped-gemm --moe-token-dispatcher-type alltoall
)
torchrun --nproc-per-node 8 --nnodes 256 --node-rank "$SLURM_NODEID" --master-addr "$HEAD" pretrain_gpt.py \
  "${MODEL[@]}" "${MOE[@]}" \
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 16 --expert-model-parallel-size 64 \
  --expert-tensor-parallel-size 1 --sequence-parallel --pipeline-model-parallel-layout "$layout" \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --recompute-granularity selective --recompute-modules mla_up_proj mlp moe_act \
  --seq-length 4096 --micro-batch-size 1 --global-batch-size 4096 --train-iters 200 --lr 2.2e-4 --bf16 \
  --tokenizer-type NullTokenizer --mock-data
