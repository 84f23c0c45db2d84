"""Models and clusters built in code, for tests that must not change with the zoo. Models are those of config.json."""

from __future__ import annotations

import json
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor

_COMMON: dict[str, Any] = {"schema": "symconfig.model/1", "source": "config.json of the model on Hugging Face"}

_MODELS: dict[str, dict[str, Any]] = {
    "llama2-13b": {"model_type": "llama", "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40,
                   "num_attention_heads": 40, "num_key_value_heads": 40, "head_dim": 128, "vocab_size": 32000,
                   "max_position_embeddings": 4096, "huggingface_id": "meta-llama/Llama-2-13b-hf"},
    "llama3.1-70b": {
        "model_type": "llama",
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "qwen2.5-7b": {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                   "num_attention_heads": 28, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 152064,
                   "max_position_embeddings": 131072, "rope_theta": 1000000.0, "norm_eps": 1e-6, "qkv_bias": True},
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "norm_eps": 1e-6,
        "qk_norm": True,
        "experts": {
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
            "router_aux_loss_coef": 0.001,
        },
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 0,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "experts": {
            "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 14336, "norm_topk_prob": True,
            "router_aux_loss_coef": 0.02,
        },
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "head_dim": 192,
        "vocab_size": 129280,
        "max_position_embeddings": 163840,
        "rope_theta": 10000.0,
        "norm_eps": 1e-6,
        "attention": "mla",
        "rope_scaling": {
            "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        },
        "latent": {
            "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
        "experts": {
            "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
            "shared_expert_intermediate_size": 2048, "first_k_dense_replace": 3, "scoring_func": "sigmoid",
            "norm_topk_prob": True, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5,
            "e_score_correction_bias": True, "router_aux_loss_coef": 0.0001,
        },
        "num_nextn_predict_layers": 1,
    },
    "gpt-oss-120b": {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 0,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 201088,
        "max_position_embeddings": 131072,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": False,
        },
        "hidden_act": "clamped_swiglu",
        "qkv_bias": True,
        "attention_out_bias": True,
        "sliding_window": 128,
        "sliding_window_pattern": [True, False] * 18,
        "attention_sinks": True,
        "experts": {
            "num_experts": 128, "num_experts_per_tok": 4, "moe_intermediate_size": 2880, "norm_topk_prob": True,
            "softmax_after_topk": True, "router_bias": True, "expert_bias": True, "router_aux_loss_coef": 0.9,
        },
    },
    "gpt3-175b": {"model_type": "gpt2", "hidden_size": 12288, "intermediate_size": 49152, "num_hidden_layers": 96,
                  "num_attention_heads": 96, "num_key_value_heads": 96, "head_dim": 128, "vocab_size": 50257,
                  "max_position_embeddings": 2048, "tie_word_embeddings": True, "hidden_act": "gelu_tanh",
                  "gated_mlp": False, "mlp_bias": True, "norm": "layernorm", "position": "learned", "qkv_bias": True,
                  "attention_out_bias": True, "attention_dropout": 0.1, "hidden_dropout": 0.1},
}  # fmt: skip
_MODELS["llama2-13b-lora"] = {
    **_MODELS["llama2-13b"],
    "adapter": {"r": 16, "lora_alpha": 32.0, "target_modules": ["q_proj", "v_proj"]},
}

# product, vendor, architecture, compute units, GiB, bytes/s, bf16 FLOP/s (None: no bf16), fp16 FLOP/s, NVLink bytes/s
_GPUS: dict[str, tuple[str, str, str, int, int, float, float | None, float, float]] = {
    "a100-80gb": ("NVIDIA A100-SXM4-80GB", "nvidia", "ampere", 108, 80, 2.039e12, 312e12, 312e12, 300e9),
    "h100": ("NVIDIA H100 SXM", "nvidia", "hopper", 132, 80, 3.35e12, 989e12, 989e12, 450e9),
    "b200": ("NVIDIA B200", "nvidia", "blackwell", 148, 180, 8e12, 2250e12, 2250e12, 900e9),
    "v100-16gb": ("NVIDIA V100-SXM2-16GB", "nvidia", "volta", 80, 16, 0.9e12, None, 125e12, 150e9),
    "mi300x": ("AMD Instinct MI300X", "amd", "cdna3", 304, 192, 5.3e12, 1307e12, 1307e12, 448e9),
}


def sample_model(name: str = "llama2-13b", /, **overrides: Any) -> ModelDescriptor:
    """A model descriptor built in code; `overrides` replace fields."""
    fields = {**_COMMON, "name": name, **_MODELS[name], **overrides}
    return ModelDescriptor.model_validate_json(json.dumps(fields))


def _q(value: float) -> dict[str, Any]:
    return {"value": value, "source": "datasheet", "uncertainty": 0.0}


def sample_cluster(name: str = "a100-80gb", gpus_per_node: int = 8) -> ClusterDescriptor:
    """A cluster with an NVLink domain per node and a flat network."""
    product, vendor, arch, units, gib, hbm, bf16, fp16, link = _GPUS[name]
    peak = {"fp16": _q(fp16), **({"bf16": _q(bf16)} if bf16 else {})}
    gpu = {
        "product": product, "vendor": vendor, "architecture": arch, "compute_units": units,
        "memory_bytes": _q(gib * 2**30), "memory_bandwidth_bytes_per_s": _q(hbm), "peak_flops": peak,
        "context_bytes": _q(2 * 2**30),
    }  # fmt: skip
    kernels = {
        "gemm_efficiency": _q(0.8), "gemm_k_half": _q(490), "hbm_efficiency": _q(0.75), "launch_s": _q(8e-6),
        "attention_efficiency": _q(0.4), "attention_backward_ratio": _q(0.9), "link_efficiency": _q(0.8),
    }  # fmt: skip
    levels = [
        {"name": "nvlink", "size": gpus_per_node, "bandwidth_bytes_per_s": _q(link), "latency_s": _q(5e-6)},
        {"name": "spine", "size": None, "bandwidth_bytes_per_s": _q(25e9), "latency_s": _q(1e-5)},
    ]
    return ClusterDescriptor.model_validate_json(
        json.dumps(
            {
                "schema": "symconfig.cluster/1",
                "name": name,
                "source": "test",
                "gpus_per_node": gpus_per_node,
                "gpu": gpu,
                "host": {"memory_bytes": _q(2**40), "link_bytes_per_s": _q(25e9)},
                "levels": levels,
                "kernels": kernels,
            }
        )
    )
