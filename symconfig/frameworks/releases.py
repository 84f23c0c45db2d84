"""What the frameworks' releases can do, where the search and the written files must agree on it."""

from __future__ import annotations

from symconfig.plans.choices import ZeroStage

# The release that the rendered files are made for and checked against.
DEEPSPEED_RELEASE = "0.19.8"
# AutoEP's presets (deepspeed/module_inject/auto_ep_presets), each named like its model_type, whose training on CPU
# ranks gives the loss of plain data parallelism, with Transformers 5.23.
AUTOEP_MODELS = frozenset(("mixtral", "qwen3_moe", "deepseek_v3"))
# Architectures whose training with AutoTP gives the loss of one rank. Of the others AutoTP refuses the tensor-parallel
# plan that Transformers brings (experts), or splits nothing (gpt_oss), or finds no linear layers (gpt2).
AUTOTP_MODELS = frozenset(("llama", "mistral", "qwen", "qwen2", "qwen3"))

# Valid names of Megatron-LM's --recompute-modules, and the version in which each appeared (transformer_config.py).
RECOMPUTE_SINCE = {
    "core_attn": "core_v0.12.1",
    "layernorm": "core_v0.12.1",
    "mlp": "core_v0.12.1",
    "moe_act": "core_v0.12.1",
    "mla_up_proj": "core_v0.12.1",
    "moe": "core_v0.12.1",
    "shared_experts": "core_v0.14.0",
}
# --pipeline-model-parallel-layout, and what it may say: multi-token prediction; that in another chunk than the loss
# (pipeline_parallel_layer_layout.py, validate_layer_layout).
LAYOUT_SINCE = "core_v0.13.0"
LAYOUT_MTP_SINCE = "core_v0.14.0"
LAYOUT_MTP_ALONE_SINCE = "core_v0.16.1"
# Megatron-LM pads the vocabulary to a multiple of this times tp (--make-vocab-size-divisible-by, its default).
MEGATRON_VOCAB_MULTIPLE = 128

# Megatron-FSDP's --data-parallel-sharding-strategy, and the ZeRO stage that each is.
SHARDING_STAGES: dict[str, ZeroStage] = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}

# Megatron-Bridge's release, and the Megatron-LM that it goes with: its requirement is megatron-core>=0.15,<0.17.
BRIDGE_RELEASE = "0.3.1"
BRIDGE_MEGATRON = ("core_v0.15.0", "core_v0.16.1")


def megatron_release(version: str) -> tuple[int, int]:
    """core_v0.13.0 -> (0, 13); dev is newer than any."""
    if not version.startswith("core_v"):
        return (99, 0)
    major, minor = version.removeprefix("core_v").split(".")[:2]
    return int(major), int(minor)
