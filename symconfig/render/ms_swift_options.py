"""What every option that a plan gives Megatron-LM becomes in ms-swift: an argument, nothing, or a refusal.

Read in ms-swift 4.6.0, megatron/arguments/megatron_args.py and megatron/model/utils.py, and in mcore-bridge 1.6.5,
config/{parser,model_config}.py. An option that is in none of these tables is refused.
"""

from __future__ import annotations

# Spelled alike, but for dashes.
SAME = frozenset((
    "--micro-batch-size", "--global-batch-size", "--train-iters", "--optimizer", "--adam-beta1", "--adam-beta2",
    "--adam-eps", "--weight-decay", "--clip-grad", "--seed", "--lr", "--min-lr", "--lr-decay-style",
    "--lr-decay-iters", "--lr-warmup-iters", "--lr-wsd-decay-iters", "--lr-wsd-decay-style", "--fp16", "--bf16",
    "--fp8-format", "--fp8-recipe", "--fp8-amax-history-len", "--fp8-amax-compute-algo", "--fp4-format", "--fp4-recipe",
    "--accumulate-allreduce-grads-in-fp32", "--tensor-model-parallel-size", "--pipeline-model-parallel-size",
    "--context-parallel-size", "--cp-comm-type", "--expert-model-parallel-size", "--expert-tensor-parallel-size",
    "--sequence-parallel", "--tp-comm-overlap", "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers", "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split", "--pipeline-model-parallel-layout", "--use-distributed-optimizer",
    "--overlap-grad-reduce", "--overlap-param-gather", "--use-precision-aware-optimizer", "--optimizer-cpu-offload",
    "--optimizer-offload-fraction", "--use-megatron-fsdp", "--data-parallel-sharding-strategy",
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers", "--recompute-modules",
    "--moe-router-load-balancing-type", "--moe-aux-loss-coeff", "--moe-router-dtype", "--moe-token-dispatcher-type",
    "--moe-grouped-gemm", "--mtp-num-layers", "--mtp-loss-scaling-factor", "--eval-iters",
))
RENAMED = {
    "--seq-length": "max_length",
    "--num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size",
    "--microbatch-group-size-per-virtual-pipeline-stage": "microbatch_group_size_per_vp_stage",
    "--eval-interval": "eval_steps",
    "--save": "output_dir",
    "--save-interval": "save_steps",
    "--log-interval": "logging_steps",
    "--data-path": "dataset",
}
# Of options without a value, or with one of few: what is said instead.
SAID = {
    ("--no-overlap-p2p-communication",): {"overlap_p2p_comm": False},
    ("--no-gradient-accumulation-fusion",): {"gradient_accumulation_fusion": False},
    ("--moe-flex-dispatcher-backend", "deepep"): {"moe_enable_deepep": True},
    ("--moe-enable-deepep",): {"moe_enable_deepep": True},
}
# Fields of TransformerConfig without an argument of their own, which `megatron_extra_kwargs` passes on.
PASSED_ON = frozenset(("--moe-router-bias-update-rate",))

_CONFIG = "the model's config.json says it"
_DATA = "what is trained on is `dataset`, with the model's tokenizer"
NOT_NEEDED = {
    **dict.fromkeys((
        "--num-layers", "--hidden-size", "--ffn-hidden-size", "--num-attention-heads", "--kv-channels",
        "--group-query-attention", "--num-query-groups", "--qk-layernorm", "--position-embedding-type", "--rotary-base",
        "--rotary-percent", "--use-rope-scaling", "--rotary-seq-len-interpolation-factor", "--rotary-scaling-factor",
        "--rope-type", "--mscale", "--mscale-all-dim", "--yarn-original-max-position-embeddings", "--yarn-beta-fast",
        "--yarn-beta-slow", "--no-yarn-correction-range-round-to-int", "--max-position-embeddings", "--normalization",
        "--norm-epsilon", "--swiglu", "--quick-geglu", "--glu-linear-offset", "--activation-func-clamp-value",
        "--disable-bias-linear", "--add-qkv-bias", "--window-size", "--window-attn-skip-freq", "--softmax-type",
        "--untie-embeddings-and-output-weights", "--attention-dropout", "--hidden-dropout", "--init-method-std",
        "--multi-latent-attention", "--q-lora-rank", "--kv-lora-rank", "--qk-head-dim", "--qk-pos-emb-head-dim",
        "--v-head-dim", "--num-experts", "--moe-ffn-hidden-size", "--moe-layer-freq", "--moe-router-topk",
        "--moe-router-pre-softmax", "--moe-router-score-function", "--moe-router-topk-scaling-factor",
        "--moe-router-num-groups", "--moe-router-group-topk", "--moe-router-enable-expert-bias",
        "--moe-shared-expert-intermediate-size", "--moe-shared-expert-gate", "--vocab-size", "--padded-vocab-size",
        "--make-vocab-size-divisible-by", "--apply-layernorm-1p",
    ), _CONFIG),
    **dict.fromkeys(("--mock-data", "--tokenizer-type", "--tokenizer-model", "--split"), _DATA),
    "--transformer-impl": "its layers are always Transformer Engine's",
    "--no-bias-dropout-fusion": "it decides so itself for experts with biases",
    "--no-bias-gelu-fusion": "it decides so itself",
    "--no-rope-fusion": "it fuses rope only when told to",
    "--no-create-attention-mask-in-dataloader": "packed sequences have no mask",
    "--log-throughput": "it is always logged",
    "--load": "what it goes on from is one checkpoint, of adapters or of all weights: ms_swift.py says which",
    "--ckpt-format": "torch_dist, or fsdp_dtensor with Megatron-FSDP, whatever is asked for",
    "--init-model-with-meta-device": "it loads the weights of a checkpoint in its own way",
}
# What of the plan it is, why, and the pins of which every plan that does without has one.
REFUSED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "--grad-reduce-in-bf16": ("grad_bytes", "it accumulates and reduces the gradients of bf16 in fp32", ()),
    "--megatron-fsdp-main-grads-dtype": ("grad_bytes", "it leaves the gradients of Megatron-FSDP in bf16",
                                         ("zero=..1",)),
    "--fine-grained-activation-offloading": ("activation_offload", "its trainer keeps activations on the GPU",
                                             ("activation_offload=0",)),
    "--overlap-moe-expert-parallel-comm": ("overlap.moe_a2a", "its trainer does not hide the experts' all-to-all",
                                           ("moe_overlap=off",)),
    "--attention-backend": ("attention", "its packed sequences go with fused attention only", ()),
}
# Comes with one that is refused.
REFUSED_WITH = frozenset(("--offload-modules",))
