#!/bin/bash
# ./getopts_case.sh -n 2 -t 8 [-p pp] [-b mbs] [--debug]
set -u
. "$HOME/.cluster_profile.d/gpu.rc" 2>/dev/null || true

nodes=1
tp=8
pp=1
mbs=1
debug=0
while (( $# )); do
  case "$1" in
    -n|--nodes)  nodes="$2"; shift 2 ;;
    -t|--tp)     tp="$2"; shift 2 ;;
    -p|--pp)     pp="$2"; shift 2 ;;
    -b)          mbs="$2"; shift 2 ;;
    --debug)     debug=1; shift ;;
    *) echo "unknown: $1"; exit 64 ;;
  esac
done

world=$(( nodes * 8 ))
dp=$(( world / (tp * pp) ))
gbs=$(( dp * mbs * 16 ))
(( debug )) && extra="--timing-log-level 2 --log-throughput" || extra=""

# rendezvous is by the first host of the allocation, or here
head=${MASTER_ADDR:-127.0.0.1}

python -m torch.distributed.run --nnodes=$nodes --nproc-per-node=8 --rdzv-endpoint=$head:6000 --rdzv-backend=c10d \
  pretrain_gpt.py \
  --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
  --group-query-attention --num-query-groups 8 \
  --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope --rotary-base 500000 \
  --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
  --attention-dropout 0 --hidden-dropout 0 --vocab-size 128256 \
  --tensor-model-parallel-size $tp --pipeline-model-parallel-size $pp --sequence-parallel \
  --micro-batch-size $mbs --global-batch-size $gbs --train-iters ${ITERS:-5000} --lr 1e-5 --bf16 \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
  --use-distributed-optimizer --data-path ${DATA_PATH} $extra
