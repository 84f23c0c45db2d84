"""Families with experts and latent attention: what general tests of the import do not reach, and published sizes."""

from __future__ import annotations

import os
from typing import Any

import pytest

from symconfig.descriptor.architectures.registry import architectures
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.graph.model import parameters
from tests.descriptor.small_configs import FURTHER, small_config, to_transformers_config

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LONGCAT: dict[str, Any] = {
    "attention_method": "MLA", "expert_ffn_hidden_size": 2048, "ffn_hidden_size": 12288, "hidden_size": 6144,
    "kv_lora_rank": 512, "max_position_embeddings": 131072, "mla_scale_kv_lora": True, "mla_scale_q_lora": True,
    "moe_topk": 12, "n_routed_experts": 512, "num_attention_heads": 64, "num_layers": 28, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e7, "router_bias": False,
    "routed_scaling_factor": 6.0, "v_head_dim": 128, "vocab_size": 131072, "zero_expert_num": 256,
    "zero_expert_type": "identity",
}  # fmt: skip


def read(kind: str, **changed: Any) -> ModelDescriptor:
    """Import a small model of a family."""
    return import_config({**small_config(kind), **changed}, "config.json", "small")


def real(config: Any) -> Any:
    """Build transformers' module on the meta device."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def trained(module: Any) -> int:
    return sum(weight.numel() for weight in module.parameters() if weight.requires_grad)


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("glm_moe_dsa", {"index_topk_freq": 3}),
        ("glm_moe_dsa", {"indexer_types": ["full", "shared"] * 4}),
        ("llama4_text", {"moe_layers": [1, 2, 5]}),
        ("cohere2_moe", {"first_k_dense_replace": 3, "prefix_dense_intermediate_size": 44, "rms_norm_eps": 1e-5}),
        ("cohere2_moe", {"expert_selection_fn": "sigmoid", "num_shared_experts": 2}),
        ("ernie4_5_moe", {"moe_layer_start_index": 2, "moe_layer_end_index": 5, "moe_num_shared_experts": 0}),
        ("exaone_moe", {"sliding_window_pattern": 3, "num_shared_experts": 2}),
        *FURTHER.items(),
        ("gemma4_text", {**FURTHER["gemma4_text"], "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8}),
        ("minimax_m2", {"rotary_dim": 6}),
    ],
)  # fmt: skip
def test_layers_that_differ_have_the_real_ones_parameters(kind: str, changed: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    model = read(kind, **changed)
    module = real(transformers.AutoConfig.for_model(**{**small_config(kind), **changed, **TOKENS}))
    assert parameters(model).trainable == trained(module)
    assert trained(real(to_transformers_config(model))) == trained(module)


def test_longcat_has_two_layers_for_one_and_experts_beside_the_first() -> None:
    """Transformers' class holds gates of the choices that compute nothing, too, which nothing reads."""
    model = read("longcat_flash", zero_expert_num=2)
    assert (model.num_hidden_layers, model.layer_kinds[:2]) == (16, ("moe", "dense"))
    assert model.experts.shortcut
    idle = 2 * 2 * model.experts.moe_intermediate_size * model.hidden_size
    assert trained(real(to_transformers_config(model))) == parameters(model).total + 8 * idle


def test_kimi_is_read_as_its_class() -> None:
    """Its code (auto_map) is never run; another model_type, the same model."""
    config = {**small_config("deepseek_v3"), "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}}
    kimi, deepseek = (import_config({**config, "model_type": kind}, "f", "m") for kind in ("kimi_k2", "deepseek_v3"))
    assert kimi.model_copy(update={"model_type": "deepseek_v3"}) == deepseek
    assert architectures()["kimi_k2"].defaults == architectures()["deepseek_v3"].defaults


def test_keys_that_change_no_shape_are_particulars() -> None:
    said = {one.name: one.value for one in read("olmoe", head_dim=16, clip_qkv=8.0).particulars}
    assert said == {"clip_qkv": 8.0}
    assert read("olmoe", head_dim=16).particulars == ()
    assert {one.name for one in read("llama4_text").particulars} == {"attn_scale", "floor_scale"}
    assert read("llama4_text", attn_temperature_tuning=False).particulars == ()


@pytest.mark.parametrize(
    ("kind", "changed", "field"),
    [
        ("gemma4_text", {"enable_moe_block": True}, "use_double_wide_mlp"),
        ("gemma4_text", {**FURTHER["gemma4_text"], "top_k_experts": None}, "top_k_experts"),
        ("gemma4_unified_text", {"global_head_dim": 0}, "global_head_dim"),
        ("helium", {"head_dim": 24}, "head_dim"),
        ("olmoe", {"head_dim": 24}, "head_dim"),
        ("minimax_m2", {"attn_type_list": [1, 0] * 4}, "attn_type_list"),
        ("minimax_m2", {"rotary_dim": 99}, "rotary_dim"),
        ("hunyuan_v1_moe", {"moe_topk": [1, 2] * 4, "head_dim": 12}, "moe_topk"),
        ("glm_moe_dsa", {"indexer_types": ["full", "half"] * 4}, "indexer_types"),
        ("glm_moe_dsa", {"layer_types": ["full_attention"] * 8}, "layer_types"),
        ("longcat_flash", {"zero_expert_type": "drop"}, "zero_expert_type"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias"),
        ("hy_v3", {"num_shared_experts": 1.5}, "num_shared_experts"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused_by_its_key(kind: str, changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        read(kind, **changed)
    assert field in {problem.field for problem in caught.value.problems}


def test_longcat_has_what_its_report_counts() -> None:
    """arXiv:2509.01322: 560B, of which 27B are active in the mean."""
    counted = parameters(import_config({"model_type": "longcat_flash", **LONGCAT}, "config.json", "longcat"))
    assert round(counted.total / 1e9, -1) == 560
    assert round(counted.active / 1e9) in (27, 28)


def test_hy3_has_what_its_weights_hold() -> None:
    """298,786,140,416 numbers in bf16, with the layer of multi-token prediction (tencent/Hy3, model.safetensors)."""
    counted = parameters(import_config({"model_type": "hy_v3", "num_nextn_predict_layers": 1}, "config.json", "hy3"))
    assert counted.total == 298_786_140_416
