#!/usr/bin/env bash
# Starts deepseek-v3 on 2048 x NVIDIA H100 SXM with Megatron-LM core_v0.19.0.
# Written by symconfig 0.1.0; REPORT.md says why these numbers.
#
# Run it once on every node. Options after the script's name are added at the end, and win.
#   DRY_RUN=1        print the command, one argument per line, quoted for bash, and stop
#   NNODES, GPUS_PER_NODE, NODE_RANK, MASTER_ADDR, MASTER_PORT
#   PER_RANK=1       be one process of a launcher that starts them all; RANK, LOCAL_RANK and WORLD_SIZE come from it
#   LOG_DIR          a folder: what each rank prints goes there, too, under the time of the start
#   PROFILE=nsys     record steps PROFILE_START (10) to PROFILE_END (12) with Nsight Systems, into PROFILE_DIR (profiles)
#   PROFILE=torch    the same with PyTorch's profiler
#   MEGATRON_PATH    the Megatron-LM checkout, version core_v0.19.0 (default: the current folder)
#   DATA_PATH        one dataset prefix: real data instead of the default below (used as it stands)
#   DATA_SPLIT, TOKENIZER_TYPE, TOKENIZER_MODEL    with DATA_PATH
set -euo pipefail

fail() {
    printf 'launch.sh: %s\n' "$1" >&2
    exit 2
}
[[ ! -e "$(dirname -- "${BASH_SOURCE[0]}")/.symconfig-incomplete" ]] ||
    fail "symconfig was cut off while it wrote this folder; the same command with --force repairs it"

NNODES=${NNODES:-256}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NODE_RANK=${NODE_RANK:-${SLURM_NODEID:-0}}
MASTER_ADDR=${MASTER_ADDR:-localhost}
MASTER_PORT=${MASTER_PORT:-29500}

for count in "$NNODES" "$GPUS_PER_NODE"; do
    [[ "$count" =~ ^[1-9][0-9]{0,6}$ ]] || fail "NNODES and GPUS_PER_NODE must be whole numbers, got '$count'"
done
if ((NNODES * GPUS_PER_NODE != 2048)); then
    fail "this plan is for 2048 GPUs, got $NNODES nodes x $GPUS_PER_NODE; plan again for another number"
fi

# With tensor or context parallelism before Blackwell, communication must be queued ahead of the matrix product that hides it; Megatron refuses to start otherwise.
# Source: Megatron-LM core_v0.12.1 to main, megatron/training/arguments.py, validate_args.
export CUDA_DEVICE_MAX_CONNECTIONS=1

# Keeps the allocator from reserving much more than is allocated; the memory prediction assumes it.
# Source: Megatron-LM core_v0.19.0, megatron/core/transformer/moe/README.md.
export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}"

# NVLink SHARP takes GPU memory for every communicator.
# Source: Megatron-LM core_v0.19.0, megatron/core/transformer/moe/README.md.
export NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}"

MEGATRON_PATH=${MEGATRON_PATH:-.}

MODEL_ARGS=(
    --transformer-impl transformer_engine
    --num-layers 61
    --hidden-size 7168
    --ffn-hidden-size 18432
    --num-attention-heads 128
    --multi-latent-attention
    --q-lora-rank 1536
    --kv-lora-rank 512
    --qk-head-dim 128
    --qk-pos-emb-head-dim 64
    --v-head-dim 128
    --kv-channels 128
    --qk-layernorm
    --seq-length 4096
    --position-embedding-type rope
    --rotary-base 10000
    --rope-type yarn
    --rotary-scaling-factor 40.0
    --mscale 1.0
    --mscale-all-dim 1.0
    --max-position-embeddings 163840
    --normalization RMSNorm
    --norm-epsilon 1e-06
    --swiglu
    --disable-bias-linear
    --vocab-size 129280
    --make-vocab-size-divisible-by 128
    --padded-vocab-size 129280
    --untie-embeddings-and-output-weights
    --mtp-num-layers 1
    --mtp-loss-scaling-factor 0.1
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --init-method-std 0.02
)

MOE_ARGS=(
    --num-experts 256
    --moe-ffn-hidden-size 2048
    --moe-layer-freq '([0]*3+[1]*58)'
    --moe-shared-expert-intermediate-size 2048
    --moe-router-topk 8
    --moe-router-score-function sigmoid
    --moe-router-dtype fp32
    --moe-router-num-groups 8
    --moe-router-group-topk 4
    --moe-router-topk-scaling-factor 2.5
    --moe-router-enable-expert-bias
    --moe-router-bias-update-rate 0.001
    --moe-router-load-balancing-type seq_aux_loss
    --moe-aux-loss-coeff 0.0001
    --moe-token-dispatcher-type alltoall
    --moe-grouped-gemm
    --moe-permute-fusion
    --moe-router-fusion
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 2048
    --train-iters 1000
    --optimizer adam
    --adam-beta1 0.9
    --adam-beta2 0.95
    --adam-eps 1e-08
    --weight-decay 0.1
    --clip-grad 1.0
    --seed 1234
    --lr 0.00019
    --min-lr 1.9e-05
    --lr-decay-style cosine
    --lr-decay-iters 1000
    --lr-warmup-iters 100
    --manual-gc
    --manual-gc-interval 100
)

PRECISION_ARGS=(
    --bf16
)

MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 16
    --context-parallel-size 1
    --expert-model-parallel-size 64
    --expert-tensor-parallel-size 1
    --sequence-parallel
    --pipeline-model-parallel-layout 'Etttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tmL'
)

DATA_PARALLEL_ARGS=(
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)

# Mock data: random tokens, for a first run and for measuring.
DATA_ARGS=(
    --mock-data
    --tokenizer-type NullTokenizer
    --no-create-attention-mask-in-dataloader
)

EVAL_AND_LOGGING_ARGS=(
    --eval-iters 0
    --eval-interval 1000
    --log-interval 1
    --log-throughput
    --ckpt-format torch_dist
)

if [[ -n "${DATA_PATH:-}" ]]; then
    TOKENIZER_MODEL=${TOKENIZER_MODEL:-}
    [[ -n "$TOKENIZER_MODEL" ]] || fail "DATA_PATH needs TOKENIZER_MODEL: the tokenizer's folder or Hugging Face name"
    default_type=HuggingFaceTokenizer
    default_split='949,50,1'
    DATA_ARGS=(
        "--data-path=$DATA_PATH"
        "--split=${DATA_SPLIT:-$default_split}"
        "--tokenizer-type=${TOKENIZER_TYPE:-$default_type}"
        "--tokenizer-model=$TOKENIZER_MODEL"
        --no-create-attention-mask-in-dataloader
    )
fi

PROGRAM=(
    "$MEGATRON_PATH/pretrain_gpt.py"
    "${MODEL_ARGS[@]}"
    "${MOE_ARGS[@]}"
    "${TRAINING_ARGS[@]}"
    "${PRECISION_ARGS[@]}"
    "${MODEL_PARALLEL_ARGS[@]}"
    "${DATA_PARALLEL_ARGS[@]}"
    "${DATA_ARGS[@]}"
    "${EVAL_AND_LOGGING_ARGS[@]}"
    "$@"
)
case "${PROFILE:-}" in
"" | nsys | torch) ;;
*) fail "PROFILE must be nsys or torch, got '$PROFILE'" ;;
esac
PROFILE_DIR=${PROFILE_DIR:-profiles}
PROFILE_START=${PROFILE_START:-10}
PROFILE_END=${PROFILE_END:-12}
if [[ "${PROFILE:-}" == nsys ]]; then
    PROGRAM+=(--profile --profile-step-start "$PROFILE_START" --profile-step-end "$PROFILE_END")
elif [[ "${PROFILE:-}" == torch ]]; then
    PROGRAM+=(--profile --use-pytorch-profiler --profile-step-start "$PROFILE_START" --profile-step-end "$PROFILE_END")
    [[ " ${PROGRAM[*]}" == *" --tensorboard-dir"* ]] || PROGRAM+=(--tensorboard-dir "$PROFILE_DIR/tensorboard")
fi
COMMAND=(
    torchrun
    --nnodes "$NNODES"
    --nproc-per-node "$GPUS_PER_NODE"
    --node-rank "$NODE_RANK"
    --master-addr "$MASTER_ADDR"
    --master-port "$MASTER_PORT"
    "${PROGRAM[@]}"
)
process=node$NODE_RANK
started=$(date +%Y%m%d-%H%M%S)
logs=${LOG_DIR:+$LOG_DIR/$started-$process}
if [[ -n "$logs" ]]; then
    COMMAND=(torchrun --log-dir "$logs" --tee 3 "${COMMAND[@]:1}")
    export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="[rank\${rank}]:" # torchrun puts the rank in
fi
if [[ "${PER_RANK:-0}" == 1 ]]; then
    [[ "${WORLD_SIZE:-}" == 2048 ]] || fail "this plan is for 2048 processes, got WORLD_SIZE='${WORLD_SIZE:-}'"
    [[ -n "${RANK:-}" && -n "${LOCAL_RANK:-}" ]] || fail "PER_RANK=1 is for launchers that set RANK and LOCAL_RANK"
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # as torchrun has it
    COMMAND=(python3 -u "${PROGRAM[@]}")
    process=rank$RANK
    logs=${LOG_DIR:+$LOG_DIR/$process-$started.log} # processes of a node may start in different seconds
fi
runner=${COMMAND[0]}
if [[ "${PROFILE:-}" == nsys ]]; then
    COMMAND=(
        nsys profile --sample none --trace "cuda,nvtx" --force-overwrite true
        --capture-range cudaProfilerApi --capture-range-end stop
        --output "$PROFILE_DIR/$process"
        "${COMMAND[@]}"
    )
fi

if [[ "${DRY_RUN:-0}" == 1 ]]; then
    printf '%q\n' "${COMMAND[@]}"
    exit 0
fi

if ((NNODES > 1)) && [[ "$MASTER_ADDR" == localhost && "${PER_RANK:-0}" != 1 ]]; then
    fail "MASTER_ADDR must name the first of the $NNODES nodes (launchers set it)"
fi
[[ -f "$MEGATRON_PATH/pretrain_gpt.py" ]] || fail "no pretrain_gpt.py in '$MEGATRON_PATH'; set MEGATRON_PATH to a Megatron-LM checkout"
command -v "$runner" >/dev/null || fail "$runner is not on the PATH; install PyTorch or start the container"
if [[ -n "${PROFILE:-}" ]]; then
    command -v "${COMMAND[0]}" >/dev/null || fail "PROFILE=nsys needs Nsight Systems, and nsys is not on the PATH"
    mkdir -p "$PROFILE_DIR"
fi
if [[ "${PROGRAM[*]} " != *' --save'[=\ ]* && "$NODE_RANK" == 0 && "${RANK:-0}" == 0 ]]; then
    printf 'launch.sh: %s\n' 'no checkpoint is written; to change that: bash launch.sh --save DIR --save-interval 500' >&2
fi
if [[ -n "$logs" ]]; then
    if [[ "${PER_RANK:-0}" == 1 ]]; then
        mkdir -p "$LOG_DIR"
        exec > >(exec tee -a "$logs") 2>&1
    fi
fi
exec "${COMMAND[@]}"
