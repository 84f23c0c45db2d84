"""Small `config.json`s of families: one of each in transformers' registry, and random ones of each architecture."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from symconfig.descriptor.architectures.hybrid import ARCHITECTURES as HYBRID
from symconfig.descriptor.architectures.keys import SAME_NETWORK, families
from symconfig.descriptor.architectures.multimodal import ARCHITECTURES as INNER
from symconfig.descriptor.architectures.registry import architectures
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.write import config_json

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


# Of no class of their own, or held elsewhere: LongCat's weights that nothing reads (test_expert_families.py), blocks in
# attention's place (test_hybrid.py), language models that are only part of one (test_vision.py), Phi-4 multimodal.
_ELSEWHERE = {*SAME_NETWORK, "longcat_flash", "phi4_multimodal", *INNER, *HYBRID}
KINDS = tuple(kind for kind, table in architectures().items() if table.text_of is None and kind not in _ELSEWHERE)
_MLA = ("deepseek_v2", "deepseek_v3")
_FACTORS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling", "logit_scale")
_SWITCHES = (
    "use_post_norm", "multi_query", "new_decoder_architecture", "alibi", "do_layer_norm_before",
    "_remove_final_layer_norm", "scale_embedding", "use_qk_norm", "qk_layernorm", "use_qkv_bias", "use_bias",
    "enable_bias", "layer_norm_elementwise_affine",
)  # fmt: skip
_HEADS_FILL_HIDDEN = ("helium", "cohere2", "olmoe")
# What no descriptor says otherwise, or what the class demands.
_FIXED: dict[str, dict[str, Any]] = {
    "afmoe": {"attention_bias": False},
    "phi": {"qk_layernorm": False},
    "ernie4_5_moe": {"use_bias": False},
    "gemma4_text": {"hidden_size_per_layer_input": 0},
    "deepseek_v4": {"q_lora_rank": 12, "o_groups": 2, "o_lora_rank": 6, "num_key_value_heads": 1,
                    "attention_bias": False, "n_shared_experts": 1},
    "mimo_v2_flash": {"head_dim": 12, "num_key_value_heads": 1},  # of which layers with a window have twice as many
    **{kind: {"q_lora_rank": 12} for kind in ("deepseek_v32", "glm_moe_dsa")},
}  # fmt: skip


def tiny_config(kind: str, seed: int) -> dict[str, Any]:
    """A valid configuration; some keys are left to their default, some sizes are odd on purpose."""
    draw = random.Random(f"{kind} {seed}")
    defaults = architectures()[kind].defaults
    heads, layers = draw.choice((2, 4, 6)), draw.randint(1, 4)
    values: dict[str, Any] = {
        "vocab_size": draw.randint(50, 99),
        "hidden_size": heads * draw.choice((8, 16)),
        "intermediate_size": draw.randint(20, 60),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kind in _MLA else draw.choice((1, 2, heads)),
        "head_dim": draw.choice((8, 16)),
        "max_position_embeddings": draw.randint(40, 80),
        "tie_word_embeddings": draw.random() < 0.5,
        "attention_bias": kind not in _MLA and draw.random() < 0.5,
        "mlp_bias": draw.random() < 0.5,
        "qkv_bias": draw.random() < 0.5,
        "num_local_experts": 4,
        "num_experts": 4,
        "n_routed_experts": 8,
        "num_experts_per_tok": draw.randint(1, 4),
        "moe_intermediate_size": draw.randint(10, 30),
        "shared_expert_intermediate_size": draw.randint(10, 30),
        "n_shared_experts": draw.randint(0, 2) if kind == "deepseek_v2" else draw.randint(1, 2),
        "decoder_sparse_step": draw.choice((1, 1, 2)),
        "first_k_dense_replace": draw.randint(0, layers),
        "q_lora_rank": draw.choice((None, 12)),
        "kv_lora_rank": 10,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": draw.choice((8, 12)),
        "n_group": 2,
        "topk_group": 1,
        "num_nextn_predict_layers": 0,
        "rotary_dim": draw.choice((2, 4)),
        "use_parallel_residual": draw.random() < 0.5,
        "use_sliding_window": draw.random() < 0.5,
        "sliding_window": 16,
        "max_window_layers": draw.randint(0, 4),
    }
    values |= {name: draw.choice((1.0, 0.22, 12.0)) for name in _FACTORS}
    values |= {name: draw.random() < 0.5 for name in _SWITCHES}
    gpt2 = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    gpt2 |= {"n_positions": "max_position_embeddings", "n_inner": "intermediate_size"}
    config = {key: values[gpt2.get(key, key)] for key in defaults if gpt2.get(key, key) in values}
    for key in architectures()[kind].ignored:
        config.pop(key, None)
    if architectures()[kind].names.get("mlp_bias") == ():
        config.pop("mlp_bias", None)  # a bias of its shared experts, too, which no descriptor has
    if kind == "gpt_neox" or draw.random() < 0.3:
        for key in ("n_inner", "num_key_value_heads", "tie_word_embeddings"):
            if key in config and (key != "num_key_value_heads" or heads % 8 == 0 or kind in ("llama", "phi3")):
                config.pop(key)
    for key, value in _FIXED.get(kind, {}).items():
        config[key] = value
    if kind in _HEADS_FILL_HIDDEN and "head_dim" in config:
        config["head_dim"] = config["hidden_size"] // heads
    if kind == "gemma4_text":
        config["hidden_size_per_layer_input"] = 0
    if kind == "mpt":
        config.pop("logit_scale")  # which its modules do not read
    if kind == "falcon":
        config["num_kv_heads"] = draw.choice((1, 2, heads))
    if kind == "smollm3":
        config["no_rope_layers"] = [draw.randint(0, 1) for _ in range(layers)]
    if kind == "internlm3":
        config["mlp_bias"] = config["attention_bias"]  # which its class demands
    if "mlp_only_layers" in defaults:
        config["mlp_only_layers"] = [0] if config["decoder_sparse_step"] == 1 and draw.random() < 0.5 else []
    return {"model_type": kind, **config}


def to_transformers_config(model: ModelDescriptor) -> Any:
    """Return transformers' config object, for `AutoModelForCausalLM.from_config`."""
    from transformers import AutoConfig

    config = config_json(model)
    return AutoConfig.for_model(config.pop("model_type"), **config)
