"""What Megatron-LM's releases can do, where the search and the written files must agree on it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.plans.configuration import ZeroStage

NEWEST = (99, 0)  # `Releases.minor` of a main branch
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
# Of modules that no model here has: Gated DeltaProduct's, and hyper-connections'.
RECOMPUTE_UNPLANNED = {"gdp_in_proj": "main", "gdp_qkv": "main", "mhc": "main"}
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
# --cuda-graph-impl full_iteration; before, --cuda-graph-impl local --cuda-graph-scope full_iteration. And the first
# with an expert capacity per rank, without which the host waits for token counts.
FULL_ITERATION_SINCE = EXPERT_CAPACITY_SINCE = "core_v0.18.2"
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


def between(version: str, since: str | None, until: str | None) -> bool:
    """Return whether a release lies between two others, both included; None is no bound."""
    number = megatron_release(version)
    return (since is None or number >= megatron_release(since)) and (until is None or number <= megatron_release(until))


# By field, dotted; each has its default there.
NEVER: Mapping[str, str] = MappingProxyType(
    {
        "lm_head_bias": "its output layer has no bias",
        "num_labels": "its output layer gives logits",
        "norm_bias": "its LayerNorm has a bias",
        "norm_weight": "its norms have weights",
        "norm_before_sublayer": "attention and MLP always read a norm",
        "norm_after_sublayer": "it has no norms after attention and MLP",
        "final_norm": "it has a norm before the output layer",
        "extra_positions": "its table has a row for each position",
        "parallel_residual": "attention and MLP always follow each other",
        "shared_input_norm": "attention and MLP have a norm each",
        "embedding_norm": "it has no norm behind the embedding",
        "residual_multiplier": "it does not scale what a sublayer adds",
        "rope_local_base_freq": "all layers share one rope base",
        "v_norm": "it has no norm of values",
        "v_head_dim": "values are as wide as keys",
        "chunked_attention": "its windows slide",
        "attn_logit_softcapping": "it does not cap attention logits",
        "final_logit_softcapping": "it does not cap logits",
        "experts.zero_experts": "every expert computes",
        "experts.input_scaled": "a choice's weight scales what its expert gives",
        "experts.shortcut": "what experts give joins the stream in their own layer",
        "experts.norms_apart": "router and experts read one norm",
        "streams": "up to core_v0.19 it has one residual stream, and for main several are not written",
        "layer_inputs": "tokens have one embedding, read by the first layer",
        "num_kv_shared_layers": "each layer's attention has keys and values of its own",
        "wide_intermediate_size": "all MLPs are as wide",
        "particulars": "its modules compute nothing besides",
    }
)


# Megatron-Bridge's release, and the Megatron-LM that it goes with: its requirement is megatron-core>=0.15,<0.17.
BRIDGE_RELEASE = "0.3.1"
BRIDGE_MEGATRON = ("core_v0.15.0", "core_v0.16.1")

# Families for which its own classes switch on one kernel for a gate with its activation, and for rotations (0.3.1 to
# 0.6.0, models/); all others are left to Megatron-Core's configuration, where both are off.
FUSES_ACTIVATION = frozenset({"llama", "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "gpt_oss"})
FUSES_ROPE = frozenset({"llama"})


def fuses_rotations(model: ModelDescriptor) -> bool:
    """Return whether the fused kernel may rotate queries and keys of a model.

    It may for rotary embeddings without YaRN (of which the kernel for packed sequences drops a factor) and without
    images' rows and columns (megatron-core 0.16.1, rope_utils.py, apply_rotary_pos_emb). Latent attention has a kernel
    of its own, which may also with YaRN.
    """
    scaled = model.rope_scaling is not None and model.rope_scaling.rope_type == "yarn" and model.latent is None
    return model.position is Position.ROPE and not scaled and model.vision is None
