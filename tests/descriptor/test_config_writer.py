"""A descriptor as config.json: the inverse of the import, for what tables say and for what only rules read."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.config_writer import config_json, lost_fields
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.load import load_model
from symconfig.errors import InfeasibleError
from tools.families import default_model

# What only a family's rule or its blocks read, with values that are not the class's.
RULED: list[tuple[str, dict[str, Any]]] = [
    ("qwen3_next", {"linear_num_value_heads": 64, "linear_key_head_dim": 96, "num_hidden_layers": 8}),
    ("lfm2", {"conv_L_cache": 5, "conv_bias": True, "full_attn_idxs": [1, 3]}),
    ("falcon_h1", {"mamba_n_heads": 64, "mamba_d_head": 96, "mamba_d_ssm": 6144, "lm_head_multiplier": 0.5}),
    ("granite", {"logits_scaling": 8.0, "attention_multiplier": 0.0078125, "residual_multiplier": 0.22}),
    ("smollm3", {"no_rope_layers": [1, 1, 0] * 12}),
    ("gpt_bigcode", {"multi_query": False}),
    ("nemotron_h", {"hybrid_override_pattern": "M-*-ME"}),
    ("gemma4_text", {"num_kv_shared_layers": 10, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 128}),
    ("mpt", {"attn_config": {"attn_pdrop": 0.1, "softmax_scale": 0.25}}),
    ("kimi_linear", {"linear_attn_config": {"num_heads": 16, "head_dim": 64, "full_attn_layers": [2, 4],
                                            "kda_layers": [1, 3]}}),
    ("deepseek_v4", {"compress_rates": {"heavily_compressed_attention": 64}}),
    ("afmoe", {"num_shared_experts": 3}),
    ("ernie4_5_moe", {"moe_num_shared_experts": 3, "moe_layer_start_index": 2}),
    ("hunyuan_v1_moe", {"moe_topk": 2, "num_experts": 8}),
    ("lfm2", {"block_ffn_dim_multiplier": 1.5, "block_multiple_of": 128}),
    ("longcat_flash", {"num_layers": 20}),
    ("minicpm3", {"v_head_dim": 48, "scale_depth": 2.0, "dim_model_base": 128, "scale_emb": 6}),
    ("nemotron_h", {"hybrid_override_pattern": "ME*E", "moe_shared_expert_intermediate_size": 96}),
    ("granitemoehybrid", {"attention_multiplier": 0.015625, "logits_scaling": 6.0, "embedding_multiplier": 12.0}),
    ("mimo_v2_flash", {"attention_value_scale": 1.0}),
    ("youtu", {"initializer_range": 0.01}),
    ("olmoe", {"clip_qkv": 8.0}),
    ("ernie4_5_moe", {"moe_layer_interval": 3, "moe_layer_end_index": 20}),
    ("cohere2_moe", {"prefix_dense_intermediate_size": 512, "first_k_dense_replace": 1, "rms_norm_eps": 1e-6}),
    ("deepseek_v4", {"num_hash_layers": 1, "hc_mult": 2, "o_groups": 4, "swiglu_limit": 7.0}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "keys"), RULED, ids=[f"{kind}-{next(iter(keys))}" for kind, keys in RULED])
def test_what_a_rule_reads_is_written_back(kind: str, keys: dict[str, Any]) -> None:
    model = import_config({"model_type": kind, **keys}, "config.json", "m")
    assert model != default_model(kind).model_copy(update={"name": "m"})
    assert list(lost_fields(model)) == []
    assert import_config(config_json(model), "config.json", "m").mixers == model.mixers


def test_the_class_is_named_as_transformers_names_it() -> None:
    assert config_json(load_model("qwen-7b"))["architectures"] == ["Qwen2ForCausalLM"]
    assert config_json(default_model("gpt2"))["architectures"] == ["GPT2LMHeadModel"]
    assert config_json(default_model("gemma3"))["model_type"] == "gemma3_text"


def test_what_is_lost_is_named_by_its_field() -> None:
    model = default_model("bloom").model_copy(update={"model_type": "llama"})
    lost = {problem.field: str(problem) for problem in lost_fields(model)}
    assert {"position", "embedding_norm", "norm", "gated_mlp"} <= set(lost)
    assert "Transformers' LlamaForCausalLM has no field for it (got alibi, need rope)" in lost["position"]


def test_an_unknown_family_names_the_nearest_and_the_list() -> None:
    model = load_model("llama2-7b").model_copy(update={"model_type": "lama"})
    with pytest.raises(InfeasibleError, match=r"Try: llama, or a family of docs/reference/models.md") as caught:
        config_json(model)
    assert len(str(caught.value)) < 200


def test_text_that_only_a_multimodal_class_has_is_not_said_to_be_unknown() -> None:
    with pytest.raises(InfeasibleError, match="qwen3_vl_text inside a multimodal model only"):
        config_json(default_model("qwen3_vl"))
