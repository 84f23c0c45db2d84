"""Llama, and what has its keys: Mistral, Mixtral, Phi-3."""

from __future__ import annotations

from symconfig.descriptor.architectures.architecture import Architecture, Derived, Window, without

LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": Derived.HEADS,
    "head_dim": Derived.HEAD_DIM,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_dropout": 0.0,
    "attention_bias": False,
    "mlp_bias": False,
}
MISTRAL = without(LLAMA, "attention_bias", "mlp_bias") | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
MIXTRAL = MISTRAL | {
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.001,
}
EXPERTS_ALIKE = {"num_experts": "num_local_experts"}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(LLAMA),
    "mistral": Architecture(MISTRAL, window=Window.ALL),
    "mixtral": Architecture(
        MIXTRAL,
        {"intermediate_size": 0, "experts.norm_topk_prob": True},
        {"intermediate_size": ("experts.moe_intermediate_size",)},
        same_as=EXPERTS_ALIKE,
        window=Window.ALL,
    ),
    "phi3": Architecture(
        without(LLAMA, "attention_bias", "mlp_bias", "head_dim")
        | {
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "head_dim": Derived.HEAD_DIM,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "resid_pdrop": 0.0,
            "partial_rotary_factor": 1.0,
            "sliding_window": None,
        },
        noted={"embd_pdrop": "embd_pdrop (dropout of the embeddings) is not modelled"},
        window=Window.ALL,
    ),
}
