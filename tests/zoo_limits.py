"""Models of the zoo that a target has no words for, each with the field that it is refused by."""

from __future__ import annotations

from collections.abc import Mapping

# In no version of Megatron-LM.
NOT_IN_MEGATRON: Mapping[str, str] = {
    "gemma2-9b": "hidden_act", "gemma3-27b": "hidden_act", "granite-4.0-h-small": "residual_multiplier",
    "kimi-k2": "rope_scaling.beta_fast", "llama3.2-1b": "rope_scaling.factor", "llama3.2-3b": "rope_scaling.factor",
    "llama4-maverick": "chunked_attention", "llama4-scout": "chunked_attention", "minimax-m2": "qk_norm_of",
    "olmo2-32b": "qk_norm_of", "gemma4-26b-a4b": "mixers",
    "deepseek-v4-flash": "mixers",
}  # fmt: skip
# In Megatron-LM from a release on, each with the field by which the releases before refuse it.
SINCE: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("deepseek-v3", "glm-4.5", "glm-4.5-air"), ("core_v0.12.1", "experts")),
    "deepseek-v3.2": ("core_v0.19.0", "indexer"),
    "gpt-oss-120b": ("core_v0.19.0", "rope_scaling"),
    **dict.fromkeys(
        ("nemotron-h-56b", "nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b"), ("core_v0.18.2", "mixers")
    ),
    **dict.fromkeys(("qwen3-next-80b-a3b", "qwen3.5-27b", "qwen3.5-35b-a3b"), ("core_v0.16.1", "mixers")),
    "smollm3-3b": ("core_v0.13.0", "rope_layers"),
}
