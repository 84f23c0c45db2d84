"""Multimodal models: where their language model stands in the file, and the language models that only they have.

Their vision towers are read by the tables of `vision.py`. These classes are no causal language models of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from symconfig.descriptor.architectures import rules
from symconfig.descriptor.architectures.architecture import Architecture

_UNTIED = {"tie_word_embeddings": False}
_UNUSED = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")

ARCHITECTURES: dict[str, Architecture] = {
    "qwen2_vl_text": Architecture(constants={"qkv_bias": True}, defaults=_UNTIED, layers=rules.qwen2),
    "qwen2_5_vl_text": Architecture(constants={"qkv_bias": True}, defaults=_UNTIED, layers=rules.qwen2),
    "qwen3_vl_text": Architecture(constants={"qk_norm": True}, defaults=_UNTIED, ignored=_UNUSED),
    "qwen3_vl_moe_text": Architecture(
        constants={"qk_norm": True, "experts.norm_topk_prob": True}, ignored=(*_UNUSED, "norm_topk_prob")
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
