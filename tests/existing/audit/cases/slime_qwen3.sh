#!/bin/bash
source "$(dirname "$0")/models/qwen3-8B.sh"
PERF_ARGS=(
   --tensor-model-parallel-size 2
   --sequence-parallel
   --use-dynamic-batch-size --attention-dropout 0.0 --hidden-dropout 0.0
   --max-tokens-per-gpu 9216
)
ROLLOUT_ARGS=(
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-max-response-len 8192
   --global-batch-size 128
   --use-kl-loss
)
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"env_vars": {"PYTHONPATH": "/root/Megatron-LM/"}}' \
   -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate \
   --hf-checkpoint /root/Qwen3-8B ${MODEL_ARGS[@]} ${ROLLOUT_ARGS[@]} ${PERF_ARGS[@]} ${EVAL_ARGS[@]} \
   --rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7
