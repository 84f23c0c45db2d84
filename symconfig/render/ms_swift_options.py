"""What every option that a plan gives Megatron-LM becomes in ms-swift: an argument, nothing, or a refusal.

Read in ms-swift 4.6.0, megatron/arguments/megatron_args.py and megatron/model/utils.py, and in mcore-bridge 1.6.5,
config/{parser,model_config}.py. An option that is in none of these tables is refused.
"""

from __future__ import annotations

from symconfig.descriptor.architectures.keys import words
from symconfig.formats.megatron import ACTIVATIONS, LINKS

# Spelled alike, but for dashes.
SAME = frozenset(
    (
        "--micro-batch-size",
        "--global-batch-size",
        "--train-iters",
        "--optimizer",
        "--adam-beta1",
        "--adam-beta2",
        "--adam-eps",
        "--weight-decay",
        "--clip-grad",
        "--seed",
        "--lr",
        "--min-lr",
        "--lr-decay-style",
        "--lr-decay-iters",
        "--lr-warmup-iters",
        "--lr-wsd-decay-iters",
        "--lr-wsd-decay-style",
        "--fp16",
        "--bf16",
        "--fp8-format",
        "--fp8-recipe",
        "--fp8-amax-history-len",
        "--fp8-amax-compute-algo",
        "--fp4-format",
        "--fp4-recipe",
        "--accumulate-allreduce-grads-in-fp32",
        "--tensor-model-parallel-size",
        "--pipeline-model-parallel-size",
        "--context-parallel-size",
        "--cp-comm-type",
        "--expert-model-parallel-size",
        "--expert-tensor-parallel-size",
        "--sequence-parallel",
        "--decoder-first-pipeline-num-layers",
        "--decoder-last-pipeline-num-layers",
        "--account-for-embedding-in-pipeline-split",
        "--account-for-loss-in-pipeline-split",
        "--pipeline-model-parallel-layout",
        "--use-distributed-optimizer",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
        "--use-precision-aware-optimizer",
        "--main-params-dtype",
        "--exp-avg-dtype",
        "--exp-avg-sq-dtype",
        "--sgd-momentum",
        "--optimizer-cpu-offload",
        "--optimizer-offload-fraction",
        "--use-megatron-fsdp",
        "--data-parallel-sharding-strategy",
        "--recompute-granularity",
        "--recompute-method",
        "--recompute-num-layers",
        "--recompute-modules",
        "--moe-router-load-balancing-type",
        "--moe-aux-loss-coeff",
        "--moe-router-dtype",
        "--moe-token-dispatcher-type",
        "--moe-grouped-gemm",
        "--moe-permute-fusion",
        "--mtp-num-layers",
        "--mtp-loss-scaling-factor",
        "--eval-iters",
        "--manual-gc",
        "--fp8-param-gather",
        "--cross-entropy-loss-fusion",
        "--cross-entropy-fusion-impl",
        "--tensorboard-dir",
        "--wandb-project",
        "--wandb-exp-name",
    )
)
RENAMED = {
    "--seq-length": "max_length",
    "--num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size",
    "--microbatch-group-size-per-virtual-pipeline-stage": "microbatch_group_size_per_vp_stage",
    "--eval-interval": "eval_steps",
    "--save": "output_dir",
    "--save-interval": "save_steps",
    "--log-interval": "logging_steps",
    "--data-path": "dataset",
    "--manual-gc-interval": "manual_gc_steps",
}
# Of options without a value: what is said instead.
SPELLED: dict[tuple[str, ...], dict[str, bool]] = {
    ("--no-overlap-p2p-communication",): {"overlap_p2p_comm": False},
    ("--no-gradient-accumulation-fusion",): {"gradient_accumulation_fusion": False},
}
# Fields of TransformerConfig without an argument of their own, which `megatron_extra_kwargs` passes on.
PASSED_ON = frozenset(("--moe-router-bias-update-rate", "--moe-flex-dispatcher-backend", "--moe-router-fusion"))

_CONFIG = "the model's config.json says it"
_DATA = "what is trained on is `dataset`, with the model's tokenizer"
_UNREAD = {"attention_gate", "qk_norm_of", "rope_layers", "experts.latent_size"}  # by its model
_MODEL = {link.option for link in LINKS if link.name not in _UNREAD}.union(*(words for *_, words in ACTIVATIONS))
NOT_NEEDED = {
    **dict.fromkeys(_MODEL - {"--squared-relu", *SAME}, _CONFIG),
    **dict.fromkeys(
        words(
            """
            --group-query-attention --position-embedding-type --use-rope-scaling --rope-type --disable-bias-linear
            --add-qkv-bias --max-position-embeddings --moe-layer-freq --vocab-size --padded-vocab-size
            --make-vocab-size-divisible-by
            """
        ),
        _CONFIG,
    ),
    **dict.fromkeys(("--mock-data", "--tokenizer-type", "--tokenizer-model", "--split"), _DATA),
    "--transformer-impl": "its layers are always Transformer Engine's",
    "--no-bias-dropout-fusion": "it decides so itself for experts with biases",
    "--no-bias-gelu-fusion": "it decides so itself",
    "--no-rope-fusion": "it fuses rope only when told to",
    "--no-create-attention-mask-in-dataloader": "packed sequences have no mask",
    "--log-throughput": "it is always logged",
    "--wandb-save-dir": "it puts the files of Weights & Biases into its output folder",
    "--distributed-timeout-minutes": "ddp_timeout says it in seconds",
    "--load": "what it goes on from is one checkpoint, of adapters or of all weights: ms_swift.py says which",
    "--ckpt-format": "torch_dist, or fsdp_dtensor with Megatron-FSDP, whatever is asked for",
    "--init-model-with-meta-device": "it loads the weights of a checkpoint in its own way",
}
# What of the plan it is, why, and the pins of which every plan that does without has one.
REFUSED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "--grad-reduce-in-bf16": (
        "grad_bytes",
        "it accumulates and reduces the gradients of bf16 in fp32",
        ("grad_dtype=fp32",),
    ),
    "--tp-comm-overlap": (
        "overlap.tp_comm",
        "user buffers are of one size (Transformer Engine, copy_into_buffer), and its packed sequences are not",
        ("user_buffers=off",),
    ),
    "--cuda-graph-impl": ("cuda_graphs", "its trainer captures no CUDA graphs", ("cuda_graphs=none",)),
    "--reuse-grad-buf-for-mxfp8-param-ag": (
        "fp8_param_gather",
        "it has no argument for the buffer through which weights in mxfp8 are gathered",
        ("fp8_param_gather=off",),
    ),
    "--megatron-fsdp-main-grads-dtype": (
        "grad_bytes",
        "it leaves the gradients of Megatron-FSDP in bf16",
        ("zero=..1",),
    ),
    "--fine-grained-activation-offloading": (
        "activation_offload",
        "its trainer keeps activations on the GPU",
        ("activation_offload=0",),
    ),
    "--overlap-moe-expert-parallel-comm": (
        "overlap.moe_a2a",
        "its trainer does not hide the experts' all-to-all",
        ("moe_overlap=off",),
    ),
    "--attention-backend": ("attention", "its packed sequences go with fused attention only", ()),
}
# Comes with one that is refused.
REFUSED_WITH = frozenset(
    (
        "--offload-modules",
        "--cuda-graph-scope",
        "--cuda-graph-modules",
        "--cuda-graph-warmup-steps",
        "--te-rng-tracker",
        "--muon-momentum",
        "--muon-nesterov",
        "--muon-num-ns-steps",
        "--muon-scale-mode",
        "--muon-extra-scale-factor",
        "--muon-tp-mode",
    )
)
