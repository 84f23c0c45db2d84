"""Keys of published files that transformers' class does not read: each is understood, and only as the class has it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.write import lost_fields
from symconfig.errors import InputError
from symconfig.graph.model import parameters
from tests.descriptor.small_configs import LAYERS, published_keys, small_config
from tests.descriptor.test_families import _real

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
KEYS, OTHERS = published_keys()["unread"], published_keys()["others"]


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
    assert list(lost_fields(ling)) == []


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
    assert list(lost_fields(model)) == []
    with pytest.raises(InputError, match="sparse_config: not supported for minicpm"):
        read(small | published | {"sparse_config": {"kernel_size": 32}})


def test_a_class_that_ties_what_the_file_does_not_say_is_told() -> None:
    text = small_config("mistral")
    told = read({"model_type": "mistral3", "text_config": text})
    assert told.tie_word_embeddings
    assert any("tie_word_embeddings: false counts" in note for note in told.notes)
    apart = read({"model_type": "mistral3", "text_config": text, "tie_word_embeddings": False})
    assert not any("tie_word_embeddings" in note for note in apart.notes)
