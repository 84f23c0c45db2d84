"""One small `config.json` for any family of transformers' registry: its class's defaults, with small sizes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from symconfig.descriptor.architectures.keys import families

LAYERS = 8  # two periods of the usual pattern of four layers
_HIDDEN, _HEADS, _HEAD_DIM, _FFN, _EXPERTS, _CHOSEN = 64, 4, 12, 40, 4, 2


def _all(names: str, value: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


# A size by each name that a class has for it. Widths that could be taken for one another differ.
SMALL: dict[str, Any] = {
    **_all("vocab_size unpadded_vocab_size", 72),
    **_all("hidden_size n_embd d_model", _HIDDEN),
    **_all("num_hidden_layers n_layer n_layers num_layers num_blocks", LAYERS),
    **_all("num_attention_heads n_head n_heads num_heads attention_heads swa_num_attention_heads", _HEADS),
    **_all("num_key_value_heads swa_num_key_value_heads", 2),
    **_all("head_dim kv_channels dim_head swa_head_dim attention_head_dim", _HEAD_DIM),
    **_all("intermediate_size n_inner ffn_dim dff dim_ff ffn_hidden_size dense_intermediate_size", _FFN),
    **_all("max_position_embeddings n_positions max_seq_len context_length model_max_length", 80),
    **_all("num_experts num_local_experts n_routed_experts moe_num_experts", _EXPERTS),
    **_all("num_experts_per_tok num_experts_per_token moe_k moe_topk top_k_experts", _CHOSEN),
    **_all("moe_intermediate_size expert_ffn_hidden_size", 28),
    **_all("shared_expert_intermediate_size moe_shared_expert_intermediate_size shared_intermediate_size", 36),
    **_all("n_shared_experts num_shared_experts", 1),
    **_all("n_group topk_group num_expert_group", 1),
    **_all("q_lora_rank", 20),
    **_all("kv_lora_rank o_lora_rank", 16),
    **_all("qk_rope_head_dim rotary_dim", 4),
    **_all("qk_nope_head_dim", 8),
    **_all("v_head_dim", 10),
    **_all("index_head_dim", 8),
    **_all("index_n_heads", 2),
    **_all("sliding_window sliding_window_size attention_window_size window_size local_attention", 16),
    **_all("attention_chunk_size", 16),
    **_all("first_k_dense_replace num_dense_layers", 1),
    **_all("hidden_size_per_layer_input", 8),
}


# What a family's class demands of sizes, or cannot be built without.
OWN: dict[str, dict[str, Any]] = {
    **{kind: {"head_dim": 16} for kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")},
    # Its weights have rows for experts without computing, which nothing reads; its angles are as wide as a head.
    "longcat_flash": {"zero_expert_num": 0, "head_dim": 4},
    "deepseek_v4": {
        "o_groups": 2,
        "index_topk": 4,
        "head_dim": 16,
        "layer_types": [
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
        ]
        * (LAYERS // 4),
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
    },
    "helium": {"head_dim": 16},
    "ministral": {"head_dim": 12},
    "hunyuan_v1_dense": {"head_dim": 12},
    "hunyuan_v1_moe": {"head_dim": 12},
    "gemma4_text": {
        "vocab_size_per_layer_input": 60,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
    },
    "gemma4_unified_text": {"global_head_dim": 20, "attention_k_eq_v": False},
    "mamba2": {"num_heads": 16, "head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
}


# What published files of a family have and its class's defaults have not: layers of further modules.
FURTHER: dict[str, dict[str, Any]] = {
    "gemma4_text": {
        "enable_moe_block": True,
        "use_double_wide_mlp": False,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
    },
    "nemotron_h": {"moe_latent_size": 24, "layers_block_type": ["moe", "mamba"] * (LAYERS // 2)},
}


# Filled in by a class from other sizes, where it has no default.
_FOLLOWS = ("head_dim", "v_head_dim", "n_inner", "kv_channels", "attention_head_dim", "ffn_hidden_size")


def small_config(kind: str) -> dict[str, Any]:
    """Return a `config.json` of a family, without its section around a text model."""
    defaults = families()[kind]["defaults"]
    given = [key for key in SMALL if key in defaults and not (defaults[key] is None and key in _FOLLOWS)]
    return {"model_type": kind, **{key: SMALL[key] for key in given}, **OWN.get(kind, {})}


@cache
def published_keys() -> Any:
    """Return the sections of published/keys.yaml."""
    return yaml.safe_load((Path(__file__).parent / "published" / "keys.yaml").read_text(encoding="utf-8"))
