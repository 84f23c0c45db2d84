"""Models with blocks in attention's place, small enough to be built in a moment."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from tests.sample_models import sample_model

DELTA = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip
MAMBA = {
    "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
    "chunk_size": 128,
}  # fmt: skip
SWITCHES = ("conv_bias", "gated_norm")


def qwen3_next(layers: int = 8, **changed: Any) -> ModelDescriptor:
    """Qwen3-Next with fewer layers and experts: three gated delta nets, then gated attention; experts in all."""
    pattern = [place % 4 != 3 for place in range(layers)]
    experts = {
        "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "shared_expert_gate": True, "norm_topk_prob": True,
        "router_aux_loss_coef": 0.001,
    }  # fmt: skip
    fields = {
        "hidden_size": 2048,
        "intermediate_size": 0,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "vocab_size": 151936,
        "max_position_embeddings": 262144,
        "norm_zero_centered": True,
        "norm_eps": 1e-6,
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "qk_norm": True,
        "attention_gate": "channel",
        "mixers": [{"block": "gated_delta_net", "sizes": DELTA, "layers": pattern}],
        "experts": experts,
    }
    return sample_model("qwen3-30b-a3b", **fields | changed)


def of_pattern(pattern: str, **changed: Any) -> ModelDescriptor:
    """Nemotron-H's layers: M Mamba-2, * attention, - an MLP, E experts; each layer is one of them."""
    layers = list(pattern)
    mixers: list[dict[str, Any]] = [
        {"block": "mamba2", "sizes": MAMBA, "switches": SWITCHES, "layers": [each == "M" for each in layers]},
        {"block": "none", "layers": [each in "-E" for each in layers]},
    ]
    experts = {
        "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 1024, "norm_topk_prob": True, "scoring_func": "sigmoid",
        "e_score_correction_bias": True, "routed_scaling_factor": 2.5, "layers": [each == "E" for each in layers],
    }  # fmt: skip
    fields: dict[str, Any] = {
        "hidden_size": 4096,
        "intermediate_size": 21504,
        "num_hidden_layers": len(layers),
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 131072,
        "max_position_embeddings": 8192,
        "hidden_act": "relu2",
        "gated_mlp": False,
        "position": "none",
        "mixers": [mixer for mixer in mixers if any(mixer["layers"])],
        "mlp_layers": [each in "-E" for each in layers],
    }
    if "E" in layers:
        fields["experts"] = experts
    return sample_model("llama2-13b", **fields | changed)


def granite_4(layers: int = 8, **changed: Any) -> ModelDescriptor:
    """Granite 4's layers, without its factor on sublayers: Mamba-2 or attention, each with experts behind it."""
    fields: dict[str, Any] = {
        "num_hidden_layers": layers,
        "mixers": [
            {
                "block": "mamba2",
                "sizes": MAMBA | {"n_groups": 4},
                "switches": SWITCHES,
                "layers": [place % 4 != 3 for place in range(layers)],
            }
        ],
        "position": "none",
        "logits_multiplier": 0.125,
        "embedding_multiplier": 12.0,
        "norm_eps": 1e-5,
    }
    return sample_model("qwen3-30b-a3b", **fields | changed)


def deepseek_v32(layers: int = 4, **changed: Any) -> ModelDescriptor:
    """DeepSeek-V3.2 with fewer layers and experts, the first layer dense."""
    fields: dict[str, Any] = {
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": 0,
        "indexer": {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048},
        "experts": {
            "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 2048,
            "shared_expert_intermediate_size": 2048, "first_k_dense_replace": 1, "scoring_func": "sigmoid",
            "norm_topk_prob": True, "e_score_correction_bias": True, "router_aux_loss_coef": 0.001,
        },
    }  # fmt: skip
    return sample_model("deepseek-v3", **fields | changed)
