"""Google's Gemma."""

from __future__ import annotations

from symconfig.descriptor.architectures.architecture import Architecture, Window, without
from symconfig.descriptor.architectures.llama import LLAMA

_GEMMA2 = without(LLAMA, "hidden_act", "mlp_bias") | {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
_GEMMA3 = _GEMMA2 | {
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0,
    "sliding_window_pattern": 6,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
}
_GEMMA_CONSTANTS = {"norm_zero_centered": True, "norm_after_sublayer": True, "scale_embeddings": True}
_GEMMA_ONLY = {"use_bidirectional_attention": (None, False)}

ARCHITECTURES: dict[str, Architecture] = {
    "gemma2": Architecture(
        _GEMMA2, _GEMMA_CONSTANTS, only=_GEMMA_ONLY, window=Window.ALTERNATE, ignored=("hidden_act",)
    ),
    "gemma3_text": Architecture(
        _GEMMA3,
        {**_GEMMA_CONSTANTS, "qk_norm": True},
        only=_GEMMA_ONLY,
        window=Window.GEMMA3,
        ignored=("hidden_act", "_sliding_window_pattern"),
    ),
}
