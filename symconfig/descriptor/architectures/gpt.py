"""GPT-2, GPT-NeoX and gpt-oss."""

from __future__ import annotations

from types import MappingProxyType

from symconfig.descriptor.architectures.architecture import Architecture, Derived, Window, without
from symconfig.descriptor.architectures.llama import EXPERTS_ALIKE, MIXTRAL

_BIASED = {"qkv_bias": True, "attention_out_bias": True, "mlp_bias": True, "gated_mlp": False, "norm": "layernorm"}
_GPT_OSS = without(MIXTRAL, "hidden_act") | {
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "sliding_window": 128,
    "layer_types": None,
    "rope_theta": 150000.0,
    "rope_scaling": MappingProxyType(
        {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        }
    ),
    "attention_bias": True,
    "num_experts_per_tok": 4,
}

ARCHITECTURES: dict[str, Architecture] = {
    "gpt_oss": Architecture(
        _GPT_OSS,
        {
            "intermediate_size": 0,
            "hidden_act": "clamped_swiglu",
            "attention_sinks": True,
            "experts.norm_topk_prob": True,
            "experts.softmax_after_topk": True,
            "experts.router_bias": True,
            "experts.expert_bias": True,
        },
        {"intermediate_size": ("experts.moe_intermediate_size",)},
        only={"hidden_act": ("silu",), "swiglu_limit": (7.0,), "swiglu_alpha": (1.702,)},
        ignored=("initial_context_length",),
        same_as={**EXPERTS_ALIKE, "experts_per_token": "num_experts_per_tok"},
        window=Window.ALTERNATE,
    ),
    "gpt2": Architecture(
        {
            "vocab_size": 50257,
            "n_positions": 1024,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_inner": Derived.FOUR_TIMES_HIDDEN,
            "activation_function": "gelu_new",
            "resid_pdrop": 0.1,
            "attn_pdrop": 0.1,
            "layer_norm_epsilon": 1e-5,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
        },
        {**_BIASED, "position": "learned"},
        only={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
        noted={
            "embd_pdrop": "embd_pdrop (dropout of the embeddings) is taken to be resid_pdrop",
            "reorder_and_upcast_attn": "reorder_and_upcast_attn is not modelled",
        },
        ignored=(
            "n_ctx",
            "summary_type",
            "summary_use_proj",
            "summary_activation",
            "summary_proj_to_labels",
            "summary_first_dropout",
        ),
    ),
    "gpt_neox": Architecture(
        {
            "vocab_size": 50432,
            "hidden_size": 6144,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "intermediate_size": 24576,
            "hidden_act": "gelu",
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "max_position_embeddings": 2048,
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "use_parallel_residual": True,
            "rotary_pct": 0.25,
            "rotary_emb_base": 10000.0,
            "rope_scaling": None,
            "attention_bias": True,
        },
        {"mlp_bias": True, "gated_mlp": False, "norm": "layernorm"},
        ignored=("classifier_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"),
        same_as={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    ),
}
