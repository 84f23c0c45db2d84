"""Multimodal models: where their language model stands in the file, and the language models that only they have.

Their vision towers are read by the tables of `vision.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.descriptor.architectures.architecture import Architecture, Derived, Window, without
from symconfig.descriptor.architectures.qwen import ARCHITECTURES as QWEN

_QWEN2 = dict(QWEN["qwen2"].defaults) | {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "max_window_layers": 80,
}
_WINDOWS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
_QWEN3 = without(QWEN["qwen3"].defaults, *_WINDOWS) | {"max_position_embeddings": 128000, "rope_theta": 500000.0}
_QWEN3_MOE = without(QWEN["qwen3_moe"].defaults, *_WINDOWS) | {
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": Derived.HEAD_DIM,
    "max_position_embeddings": 128000,
    "rope_theta": 500000.0,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 4,
    "num_experts": 60,
    "tie_word_embeddings": True,
}
_UNUSED = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")

TEXTS: dict[str, Architecture] = {
    "qwen2_vl_text": Architecture(_QWEN2, {"qkv_bias": True}, window=Window.QWEN2),
    "qwen2_5_vl_text": Architecture(_QWEN2, {"qkv_bias": True}, window=Window.QWEN2),
    "qwen3_vl_text": Architecture(_QWEN3, {"qk_norm": True}, ignored=_UNUSED),
    # Its router's probabilities are always made to sum to one (modeling_qwen3_vl_moe.py).
    "qwen3_vl_moe_text": Architecture(
        without(_QWEN3_MOE, "norm_topk_prob"),
        {"qk_norm": True, "experts.norm_topk_prob": True},
        ignored=(*_UNUSED, "norm_topk_prob"),
        same_as={"num_local_experts": "num_experts"},
    ),
}
# Of each multimodal model its language model's type, whether its keys may stand in no section of their own, what the
# file says of tie_word_embeddings where it does not say it, and whether the language model's section says it, too.
_AROUND = (
    ("gemma3", "gemma3_text", False, True, False),
    ("glm4v", "glm4v_text", False, False, True),
    ("glm4v_moe", "glm4v_moe_text", False, False, True),
    ("internvl", "qwen2", False, True, False),
    ("llama4", "llama4_text", False, False, False),
    ("llava", "llama", False, False, True),
    ("mistral3", "mistral", False, True, False),
    ("qwen2_vl", "qwen2_vl_text", True, False, True),
    ("qwen2_5_vl", "qwen2_5_vl_text", True, False, True),
    ("qwen3_vl", "qwen3_vl_text", False, False, False),
    ("qwen3_vl_moe", "qwen3_vl_moe_text", False, False, False),
    ("qwen3_5", "qwen3_5_text", False, False, False),
    ("qwen3_5_moe", "qwen3_5_moe_text", False, False, False),
)


def around(texts: Mapping[str, Architecture]) -> dict[str, Architecture]:
    """Return the multimodal models around these language models."""
    return {
        name: Architecture({}, text_of="text_config", text_type=text, text_flat=flat, text_tied=tied, text_ties=ties)
        for name, text, flat, tied, ties in _AROUND
        if text in texts
    }
