"""Multimodal models: where their language model stands in the file, and the language models that only they have.

Their vision towers are read by the tables of `vision.py`. Defaults are those of transformers 5.23's config classes, as
for every family (a test compares them); these classes are no causal language models of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.architectures import layer_rules
from symconfig.descriptor.architectures.architecture import Architecture, Derived
from symconfig.descriptor.architectures.class_defaults import defaults

_QWEN2 = defaults("qwen2") | {
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
_UNUSED = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")


def _without_windows(kind: str) -> dict[str, Any]:
    """Return a family's defaults as Qwen3-VL's language model has them, without sliding windows."""
    kept = {key: value for key, value in defaults(kind).items() if key not in _UNUSED}
    return kept | {"max_position_embeddings": 128000, "rope_theta": 500000.0}


_QWEN3_MOE = _without_windows("qwen3_moe") | {
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": Derived.HEAD_DIM,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 4,
    "num_experts": 60,
    "tie_word_embeddings": True,
}
_QWEN3_MOE.pop("norm_topk_prob")  # its router always makes the chosen probabilities sum to one

ARCHITECTURES: dict[str, Architecture] = {
    "qwen2_vl_text": Architecture(constants={"qkv_bias": True}, defaults=_QWEN2, layers=layer_rules.qwen2),
    "qwen2_5_vl_text": Architecture(constants={"qkv_bias": True}, defaults=_QWEN2, layers=layer_rules.qwen2),
    "qwen3_vl_text": Architecture(constants={"qk_norm": True}, defaults=_without_windows("qwen3"), ignored=_UNUSED),
    "qwen3_vl_moe_text": Architecture(
        constants={"qk_norm": True, "experts.norm_topk_prob": True},
        defaults=_QWEN3_MOE,
        ignored=(*_UNUSED, "norm_topk_prob"),
        same_as={"num_local_experts": "num_experts"},
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The file around a language model of some type.

    text: that type; empty: as the families have it. tied: its tie_word_embeddings where it does not say it; ties: that
    of the language model's own section counts, too. flat: the language model may stand in no section of its own.
    """

    text: str = ""
    tied: bool = False
    ties: bool = False
    flat: bool = False


AROUND: Mapping[str, Around] = {
    "gemma3": Around(tied=True),
    "glm4v": Around(text="glm4v_text", ties=True),
    "glm4v_moe": Around(text="glm4v_moe_text", ties=True),
    "internvl": Around(text="qwen2", tied=True),
    "llama4": Around(),
    "llava": Around(text="llama", ties=True),
    "mistral3": Around(text="mistral", tied=True),
    "qwen2_vl": Around(text="qwen2_vl_text", ties=True, flat=True),
    "qwen2_5_vl": Around(text="qwen2_5_vl_text", ties=True, flat=True),
    "qwen3_vl": Around(text="qwen3_vl_text"),
    "qwen3_vl_moe": Around(text="qwen3_vl_moe_text"),
    "qwen3_5": Around(),
    "qwen3_5_moe": Around(),
}
