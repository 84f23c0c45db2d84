"""The models of Qwen; `qwen` is the first of them, with a class of its own beside its weights."""

from __future__ import annotations

from symconfig.descriptor.architectures import rules
from symconfig.descriptor.architectures.architecture import Architecture
from symconfig.descriptor.architectures.keys import words

ARCHITECTURES: dict[str, Architecture] = {
    "qwen2": Architecture(constants={"qkv_bias": True}, layers=rules.qwen2),
    "qwen2_moe": Architecture(constants={"experts.shared_expert_gate": True}, layers=rules.qwen2_moe),
    "qwen3": Architecture(constants={"qk_norm": True}, layers=rules.qwen2),
    "qwen3_moe": Architecture(
        constants={"qk_norm": True},
        only={"use_qk_norm": (True,), "shared_expert_intermediate_size": (0,)},
        ignored=("max_window_layers",),
        same_as={"num_local_experts": "num_experts"},
        layers=rules.qwen3_moe,
    ),
    "qwen": Architecture(
        defaults={
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
        constants={"qkv_bias": True},
        only={"no_bias": (True,), "scale_attn_weights": (True,)},
        noted={
            "use_dynamic_ntk": "use_dynamic_ntk rescales rope beyond seq_length at inference only, and is left out",
            "use_logn_attn": "use_logn_attn scales queries beyond seq_length at inference only, and is left out",
        },
        ignored=words("""
            bf16 fp16 fp32 onnx_safe seq_length use_flash_attn softmax_in_fp32 use_cache_quantization use_cache_kernel
        """),
        gate_and_up_in_one=True,
    ),
}
