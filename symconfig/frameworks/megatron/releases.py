"""What Megatron-LM's releases can do, where the search and the written files must agree on it."""

from __future__ import annotations

from functools import cache

from symconfig.frameworks.backend import NEWEST
from symconfig.plans.choices import ZeroStage

# Valid names of Megatron-LM's --recompute-modules, and the version in which each appeared (transformer_config.py).
RECOMPUTE_SINCE = {
    "core_attn": "core_v0.12.1",
    "layernorm": "core_v0.12.1",
    "mlp": "core_v0.12.1",
    "moe_act": "core_v0.12.1",
    "mla_up_proj": "core_v0.12.1",
    "moe": "core_v0.12.1",
    "shared_experts": "core_v0.14.0",
    "gdn_norm_out": "core_v0.19.0",
}
# Modules whose readers must keep their input as it came where products are in fp8, and since when layers can: not with
# delayed scaling (transformer_config.py, __post_init__).
KEPT_INPUTS, KEPT_INPUTS_SINCE = frozenset({"layernorm", "moe_act"}), "core_v0.14.0"
# --pipeline-model-parallel-layout, and what it may say: multi-token prediction; that in another chunk than the loss
# (pipeline_parallel_layer_layout.py, validate_layer_layout).
LAYOUT_SINCE = "core_v0.13.0"
LAYOUT_MTP_SINCE = "core_v0.14.0"
LAYOUT_MTP_ALONE_SINCE = "core_v0.16.1"
# Megatron-LM pads the vocabulary to a multiple of this times tp (--make-vocab-size-divisible-by, its default).
MEGATRON_VOCAB_MULTIPLE = 128

# Megatron-FSDP's --data-parallel-sharding-strategy, and the ZeRO stage that each is.
SHARDING_STAGES: dict[str, ZeroStage] = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}

# CUDA graphs of named modules of a layer; before, of attention or of whole layers (transformer_config.py).
GRAPHED_MODULES_SINCE = "core_v0.16.1"
# The first that refuses Transformer Engine's fused loss (arguments.py, validate_args).
FUSED_LOSS_REFUSED = "core_v0.18.2"

# validate_args wants compute capability 8.0 for --moe-grouped-gemm.
NO_GROUPED_GEMM = ("volta",)
# Without Transformer Engine; MindSpeed has kernels in the place of its, and of those of the local layers.
NO_ENGINE = ("davinci",)


@cache
def megatron_release(version: str) -> tuple[int, int]:
    """Return a release's first two numbers: core_v0.13.0 -> (0, 13); NEWEST for main and any other name."""
    if not version.startswith("core_v"):
        return NEWEST
    major, minor = version.removeprefix("core_v").split(".")[:2]
    return int(major), int(minor)
