"""The blocks of hybrid families as their files spell them: sizes and switches, in the descriptor's names."""

from __future__ import annotations

from math import ceil
from typing import Any

from symconfig.descriptor.architectures.architecture import INDEXED, LINEAR, Values
from symconfig.descriptor.layers import NO_MIXER
from symconfig.descriptor.model import ModelDescriptor


def _switches(values: Values, **named: str) -> list[str]:
    """Return the names of a block's switches whose keys are set."""
    return [name for name, key in named.items() if values.get(key)]


def _rank(values: Values, key: str) -> int:
    """Return the width of the steps' projection; auto: a sixteenth of the stream."""
    given = values[key]
    return ceil(values["hidden_size"] / 16) if given == "auto" else int(given)


def mamba(values: Values) -> dict[str, Any]:
    """Read the block of Mamba and FalconMamba."""
    sizes = {
        "ssm_intermediate_size": int(values["expand"] * values["hidden_size"]),
        "ssm_state_size": values["state_size"],
        "time_step_rank": _rank(values, "time_step_rank"),
        "conv_kernel": values["conv_kernel"],
    }
    switches = _switches(values, conv_bias="use_conv_bias", proj_bias="use_bias")
    return {"block": "mamba", "sizes": sizes, "switches": switches}


def jamba(values: Values) -> dict[str, Any]:
    sizes = {
        "ssm_intermediate_size": values["mamba_expand"] * values["hidden_size"],
        "ssm_state_size": values["mamba_d_state"],
        "time_step_rank": _rank(values, "mamba_dt_rank"),
        "conv_kernel": values["mamba_d_conv"],
    }
    switches = [*_switches(values, conv_bias="mamba_conv_bias", proj_bias="mamba_proj_bias"), "dt_b_c_norms"]
    return {"block": "mamba", "sizes": sizes, "switches": switches}


def mamba2(values: Values) -> dict[str, Any]:
    """Read the block of Mamba-2 itself."""
    sizes = {
        "mamba_num_heads": values["num_heads"],
        "mamba_head_dim": values["head_dim"],
        "n_groups": values["n_groups"],
        "ssm_state_size": values["state_size"],
        "conv_kernel": values["conv_kernel"],
        "chunk_size": values["chunk_size"],
    }
    switches = _switches(values, conv_bias="use_conv_bias", proj_bias="use_bias", out_proj_bias="use_bias")
    return {"block": "mamba2", "sizes": sizes, "switches": [*switches, "gated_norm"]}


def bamba(values: Values, out_bias: str = "mamba_proj_bias", norm: bool = True) -> dict[str, Any]:
    """Read the block of Bamba, Granite 4 and, with keys of its own, Falcon-H1."""
    inner = values.get("mamba_d_ssm") or int(values["mamba_expand"] * values["hidden_size"])
    heads, width = values["mamba_n_heads"], values["mamba_d_head"]
    sizes = {
        "mamba_num_heads": heads,
        "mamba_head_dim": inner // heads if width == "auto" else width,
        "n_groups": values["mamba_n_groups"],
        "ssm_state_size": values["mamba_d_state"],
        "conv_kernel": values["mamba_d_conv"],
        "chunk_size": values["mamba_chunk_size"],
    }
    switches = _switches(values, conv_bias="mamba_conv_bias", proj_bias="mamba_proj_bias", out_proj_bias=out_bias)
    return {"block": "mamba2", "sizes": sizes, "switches": [*switches, *(["gated_norm"] if norm else [])]}


def falcon_h1(values: Values) -> dict[str, Any]:
    block = bamba(values, "projectors_bias", bool(values["mamba_rms_norm"]))
    return {**block, "beside_attention": True}


def nemotron_h(values: Values) -> dict[str, Any]:
    names = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel", "chunk_size")
    switches = _switches(values, conv_bias="use_conv_bias", proj_bias="use_bias", out_proj_bias="use_bias")
    return {
        "block": "mamba2",
        "sizes": {name: values[name] for name in names},
        "switches": [*switches, "gated_norm"],
    }


DELTA = (
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim",
)  # fmt: skip


def delta(values: Values) -> dict[str, Any]:
    return {"block": "gated_delta_net", "sizes": {name: values[name] for name in DELTA}}


def olmo_hybrid(values: Values) -> dict[str, Any]:
    """Read the block of OLMo Hybrid; sizes that are not given follow from attention's (OlmoHybridConfig)."""
    keys = values["linear_num_key_heads"] or values["num_attention_heads"]
    width = values["linear_key_head_dim"] or int(0.75 * values["hidden_size"] / keys)
    given = dict(values) | {
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values["linear_num_value_heads"] or values["num_attention_heads"],
        "linear_key_head_dim": width,
        "linear_value_head_dim": values["linear_value_head_dim"] or 2 * width,
    }
    return delta(given)


def kimi(values: Values) -> dict[str, Any]:
    """Read the block of Kimi, whose published files have a section for these sizes."""
    section = values["linear_attn_config"] or {}
    return {
        "block": "kimi_delta_attention",
        "sizes": {
            "linear_num_heads": section.get("num_heads", values["linear_num_heads"]),
            "linear_head_dim": section.get("head_dim", values["linear_head_dim"]),
            "linear_conv_kernel_dim": section.get("short_conv_kernel_size", values["linear_conv_kernel_dim"]),
        },
    }


def bailing(values: Values) -> dict[str, Any]:
    """Read Ling 3's block: as many heads as attention has, each as wide as head_dim says.

    Saved files name all three sizes.
    """
    sizes = {
        "linear_num_heads": values["linear_num_heads"] or values["num_attention_heads"],
        "linear_head_dim": values["linear_head_dim"] or values["head_dim"],
        "linear_conv_kernel_dim": values["linear_conv_kernel_dim"] or values["short_conv_kernel_size"],
    }
    switches = ["whole_decay_proj", "whole_gate_proj"]
    return {"block": "kimi_delta_attention", "sizes": sizes, "switches": switches}


def short_conv(values: Values) -> dict[str, Any]:
    switches = _switches(values, conv_bias="conv_bias")
    return {"block": "short_conv", "sizes": {"conv_L_cache": values["conv_L_cache"]}, "switches": switches}


def alone(values: Values) -> dict[str, Any]:
    return {"block": NO_MIXER}


def rg_lru(values: Values) -> dict[str, Any]:
    width = values["lru_width"] or values["hidden_size"]
    return {"block": "rg_lru", "sizes": {"lru_width": width, "conv1d_width": values["conv1d_width"]}}


POOLED_ATTENTION = "pooled_sparse_attention"
POOLED = ("indexer_n_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio")


def pooled(values: Values) -> dict[str, Any]:
    """Read attention over what an indexer chooses by pooled keys; a file that does not say its sizes gets none"""
    sizes = {name: values[name] or 0 for name in POOLED[:-1]}
    return {"block": POOLED_ATTENTION, "sizes": {**sizes, "compress_rate": values[POOLED[-1]] or 0}}


def pooled_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return the sizes of a model's indexer, and the types of its layers."""
    pooled = next((mixer for mixer in model.mixers if mixer.block == POOLED_ATTENTION), None)
    if pooled is None:
        return {}
    own = {name: pooled.sizes[name] for name in POOLED[:-1]}
    types = [INDEXED if kind.mixer == POOLED_ATTENTION else LINEAR for kind in model.kind_of_layer]
    return {**own, POOLED[-1]: pooled.sizes["compress_rate"], "indexer_kv_heads": 1, "layer_types": types}
