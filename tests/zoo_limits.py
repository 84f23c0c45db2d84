"""Models of the zoo that a target has no words for, each with the field that it is refused by."""

from __future__ import annotations

from collections.abc import Mapping

# In no version of Megatron-LM; mcore's experimental sparse attention is no option of pretrain_gpt.py.
NOT_IN_MEGATRON: Mapping[str, str] = {
    "deepseek-v3.2": "indexer",
    "gemma2-9b": "hidden_act",
    "gemma3-27b": "hidden_act",
    "kimi-k2": "rope_scaling.beta_fast",
    "llama3.2-1b": "rope_scaling.factor",
    "llama3.2-3b": "rope_scaling.factor",
    "llama4-maverick": "chunked_attention",
    "llama4-scout": "chunked_attention",
    "minimax-m2": "qk_norm_of",
}
