"""The models of Qwen; `qwen` is the first of them, with a class of its own beside its weights."""

from __future__ import annotations

from symconfig.descriptor.architectures.architecture import Architecture, Window, without
from symconfig.descriptor.architectures.llama import LLAMA

_QWEN2 = without(LLAMA, "attention_bias", "mlp_bias") | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
_QWEN_MOE = {
    "num_experts_per_tok": 4,
    "num_experts": 60,
    "moe_intermediate_size": 1408,
    "norm_topk_prob": False,
    "router_aux_loss_coef": 0.001,
    "decoder_sparse_step": 1,
    "mlp_only_layers": (),
}
_QWEN2_MOE = (
    _QWEN2
    | _QWEN_MOE
    | {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "shared_expert_intermediate_size": 5632,
        "qkv_bias": True,
    }
)
_QWEN3 = _QWEN2 | {"head_dim": 128, "attention_bias": False}
_QWEN3_MOE = (
    without(_QWEN2, "max_window_layers", "layer_types")
    | _QWEN_MOE
    | {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
        "attention_bias": False,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "num_experts": 128,
    }
)

ARCHITECTURES: dict[str, Architecture] = {
    "qwen2": Architecture(_QWEN2, {"qkv_bias": True}, window=Window.QWEN2),
    "qwen2_moe": Architecture(_QWEN2_MOE, {"experts.shared_expert_gate": True}, window=Window.QWEN2_MOE),
    "qwen3": Architecture(_QWEN3, {"qk_norm": True}, window=Window.QWEN2),
    "qwen3_moe": Architecture(
        _QWEN3_MOE,
        {"qk_norm": True},
        ignored=("max_window_layers",),
        same_as={"num_local_experts": "num_experts"},
        window=Window.QWEN3_MOE,
    ),
    "qwen": Architecture(
        {
            "vocab_size": 151936,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "emb_dropout_prob": 0.0,
            "attn_dropout_prob": 0.0,
            "layer_norm_epsilon": 1e-6,
            "initializer_range": 0.02,
            "max_position_embeddings": 8192,
            "rotary_pct": 1.0,
            "rotary_emb_base": 10000.0,
            "intermediate_size": 22016,
            "tie_word_embeddings": False,
            "kv_channels": 128,
        },
        {"qkv_bias": True},
        only={"no_bias": (True,), "scale_attn_weights": (True,)},
        noted={
            "use_dynamic_ntk": "use_dynamic_ntk rescales rope beyond seq_length at inference only, and is left out",
            "use_logn_attn": "use_logn_attn scales queries beyond seq_length at inference only, and is left out",
        },
        ignored=(
            "bf16",
            "fp16",
            "fp32",
            "onnx_safe",
            "seq_length",
            "use_flash_attn",
            "softmax_in_fp32",
            "use_cache_quantization",
            "use_cache_kernel",
        ),
        gate_and_up_in_one=True,
    ),
}
