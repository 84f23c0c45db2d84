"""Keys of published files that transformers' class does not read: each is understood, and only as the class has it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from symconfig.descriptor.config_writer import unsaid
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.graph.count import parameters
from tests.descriptor.small_configs import LAYERS, small_config
from tests.descriptor.test_families import _real

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
WIDTH = 40  # intermediate_size of small configurations
# What stands in the files of Apertus-8B, Phi-3.5-MoE, ERNIE-4.5-21B-A3B, Hunyuan-A13B, Falcon-H1, Qwen3-Coder-480B,
# DeepSeek-V4, GLM-5.2, Qwen3.6, Nemotron 3, dots.llm1, Hunyuan-7B, Hy3 and Kimi-Linear-48B, and no class reads it.
KEYS: dict[str, dict[str, Any]] = {
    "apertus": {"qk_norm": True, "post_norm": False, "hidden_dropout": 0.0},
    "phimoe": {"hidden_dropout": 0.0, "original_max_position_embeddings": 4096},
    "ernie4_5_moe": {"moe_capacity": [64, 64, 64], "moe_gate": "topk", "moe_layer_end_index": -1},
    "dots1": {"scoring_func": "noaux_tc"},
    "hy_v3": {
        "expert_hidden_dim": 28, "first_k_dense_replace": 1, "qk_norm": True, "route_norm": True,
        "moe_router_use_sigmoid": True, "moe_router_enable_expert_bias": True, "enable_lm_head_fp32": True,
        "enable_attention_fp32_softmax": False, "use_grouped_mm": False, "num_nextn_predict_layers": 0,
    },
    "hunyuan_v1_dense": {
        "attention_head_dim": 12, "norm_type": "rms", "use_qk_norm": True, "use_rotary_pos_emb": True, "use_cla": False,
        "cla_share_factor": 2, "class_num": 0, "dense_list": [4096, 0], "pad_id": 7, "pool_type": "last",
    },
    "kimi_linear": {
        "moe_layer_freq": 1, "moe_router_activation_func": "sigmoid", "use_grouped_topk": True, "rope_theta": 1e4,
        "num_nextn_predict_layers": 0,
    },
    "hunyuan_v1_moe": {
        "attention_head_dim": 12, "moe_intermediate_size": [WIDTH] * LAYERS, "num_shared_expert": [1] * LAYERS,
        "norm_topk_prob": True, "routed_scaling_factor": 1.0, "pad_id": 7,
        "moe_layer_num_skipped": 0, "norm_type": "rms", "use_qk_norm": True, "use_rotary_pos_emb": True,
        "use_mixed_mlp_moe": True, "cla_share_factor": 2, "use_cla": False, "pool_type": "last",
        "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0, "beta_fast": 32, "mscale": 1.0},
    },
    "falcon_h1": {"mlp_expansion_factor": 8, "expansion_factor": 2, "time_step_rank": "auto"},
    "qwen3_moe": {"use_qk_norm": True, "shared_expert_intermediate_size": 0, "qkv_bias": False},
    "deepseek_v4": {"topk_method": "noaux_tc"},
    "glm_moe_dsa": {
        "rope_interleave": True, "index_share_for_mtp_iteration": True, "moe_router_dtype": "float32",
        "layer_types": ["deepseek_sparse_attention"] * LAYERS,
    },
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1, 1], "moe_layer_freq": [0, *[1] * (LAYERS - 1)],
        "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 12, "swa_v_head_dim": 10,
        "swa_rope_theta": 10000, "layernorm_epsilon": 1e-5, "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "routed_scaling_factor": None,
    },
    "qwen3_5_text": {"output_gate_type": "swish"},
    "nemotron_h": {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"},
}  # fmt: skip
# A value of each that would be another model.
OTHERS: list[tuple[str, str, Any]] = [
    ("apertus", "qk_norm", False), ("apertus", "post_norm", True), ("phimoe", "hidden_dropout", 0.1),
    ("ernie4_5_moe", "moe_gate", "hash"), ("hunyuan_v1_moe", "use_cla", True),
    ("hunyuan_v1_moe", "moe_intermediate_size", [WIDTH] * (LAYERS - 1) + [WIDTH + 8]),
    ("hunyuan_v1_moe", "moe_intermediate_size", WIDTH + 8), ("hunyuan_v1_moe", "num_shared_expert", [2] * LAYERS),
    ("hunyuan_v1_moe", "moe_layer_num_skipped", 1), ("qwen3_moe", "shared_expert_intermediate_size", 36),
    ("deepseek_v4", "topk_method", "greedy"), ("glm_moe_dsa", "moe_router_dtype", "bfloat16"),
    ("mimo_v2_flash", "swa_num_key_value_heads", 2),
    ("mimo_v2_flash", "hybrid_layer_pattern", [1] * LAYERS), ("mimo_v2_flash", "moe_layer_freq", [1] * LAYERS),
    ("hy_v3", "first_k_dense_replace", 2), ("hy_v3", "expert_hidden_dim", 36),
    ("kimi_linear", "use_grouped_topk", False), ("hunyuan_v1_dense", "use_qk_norm", False),
    ("hunyuan_v1_moe", "norm_topk_prob", False), ("dots1", "scoring_func", "softmax"),
    ("ernie4_5_moe", "moe_layer_end_index", -2), ("mimo_v2_flash", "swa_rope_theta", 5000),
    ("qwen3_5_text", "output_gate_type", "gelu"),
]  # fmt: skip


def read(config: dict[str, Any]) -> ModelDescriptor:
    return import_config(config, "config.json", "small")


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_that_the_class_does_not_read_changes_nothing(kind: str) -> None:
    config = small_config(kind) | KEYS[kind]
    plain, published = (read(one).model_copy(update={"notes": ()}) for one in (small_config(kind), config))
    assert published.model_copy(update={"rope_scaling": plain.rope_scaling}) == plain
    assert parameters(published, with_mtp=False).total == _real(config)


@pytest.mark.parametrize(("kind", "key", "value"), OTHERS)
def test_another_value_of_it_is_refused_by_its_name(kind: str, key: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        read(small_config(kind) | KEYS[kind] | {key: value})
    assert [problem.field for problem in caught.value.problems] == [key]


def test_mimo_7b_is_qwen_2_with_a_layer_that_predicts_a_further_token() -> None:
    config = small_config("qwen2") | {"head_dim": 12}
    published = {"model_type": "mimo", "attention_bias": True, "num_nextn_predict_layers": 1, "use_mrope": False}
    model, plain = read(config | published), read(config)
    assert model.num_nextn_predict_layers == 1
    assert parameters(model, with_mtp=False).total == parameters(plain).total == _real(config)
    assert parameters(model).total > parameters(plain).total
    with pytest.raises(InputError, match="attention_bias: not supported for mimo"):
        read(config | published | {"attention_bias": False})


LING = {"score_function": "sigmoid", "moe_router_enable_expert_bias": True, "use_qk_norm": True, "num_experts": 4,
        "num_shared_experts": 1, "moe_shared_expert_intermediate_size": 28, "rotary_dim": 6, "max_window_layers": 20,
        "embedding_dropout": 0.0, "output_dropout": 0.0, "use_bias": False, "router_dtype": "fp32"}  # fmt: skip


def test_ling_2_is_sarvam_s_network_with_names_of_its_own() -> None:
    """Its class is beside its weights (inclusionAI/Ling-V2, models/modeling_bailing_moe_v2.py)."""
    sarvam = {key: value for key, value in small_config("sarvam_moe").items() if key != "n_routed_experts"}
    sarvam |= {"n_group": 2, "partial_rotary_factor": 0.5, "rope_theta": 6e5, "routed_scaling_factor": 2.5}
    ling = read(sarvam | LING | {"model_type": "bailing_moe"})
    plain = read(sarvam | {"num_experts": 4, "num_shared_experts": 1})
    assert ling.model_copy(update={"model_type": "sarvam_moe", "notes": ()}) == plain
    assert parameters(ling).total == _real(sarvam | {"num_experts": 4, "num_shared_experts": 1})
    assert list(unsaid(ling)) == []


def test_ling_1_has_no_norms_of_queries_and_keys_and_scores_by_softmax() -> None:
    small = {key: value for key, value in small_config("sarvam_moe").items() if key != "use_qk_norm"}
    ling = read(small | {"model_type": "bailing_moe", "norm_head": False, "norm_softmax": False})
    assert (ling.qk_norm, ling.experts.scoring_func, ling.experts.e_score_correction_bias) == (False, "softmax", False)
    with pytest.raises(InputError, match="norm_head"):
        read(small | {"model_type": "bailing_moe", "norm_head": True})


def test_minicpm_is_granite_with_factors_of_depth_and_width() -> None:
    small = small_config("granite")
    published = {"model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}
    model = read(small | published | {"tie_word_embeddings": False, "mup_denominator": 32})
    assert (model.embedding_multiplier, model.logits_multiplier) == (12.0, 0.25)
    assert model.residual_multiplier == pytest.approx(1.4 / LAYERS**0.5)
    assert parameters(model).total == _real(small)
    assert list(unsaid(model)) == []
    with pytest.raises(InputError, match="sparse_config: not supported for minicpm"):
        read(small | published | {"sparse_config": {"kernel_size": 32}})


def test_a_class_that_ties_what_the_file_does_not_say_is_told() -> None:
    text = small_config("mistral")
    told = read({"model_type": "mistral3", "text_config": text})
    assert told.tie_word_embeddings
    assert any("tie_word_embeddings: false counts" in note for note in told.notes)
    apart = read({"model_type": "mistral3", "text_config": text, "tie_word_embeddings": False})
    assert not any("tie_word_embeddings" in note for note in apart.notes)
