"""The import tables against transformers: the same defaults, the same parameters, and nothing lost on the way back."""

from __future__ import annotations

import os
from typing import Any

import pytest

from symconfig.descriptor.architectures.keys import FRACTIONS, RULED, Derived
from symconfig.descriptor.architectures.registry import architectures
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.write import config_json, lost_fields
from symconfig.graph.model import parameters
from tests.descriptor.small_configs import KINDS, tiny_config, to_transformers_config

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
SEEDS = range(3)
# Where transformers keeps a value that older config.json files spell as a key of its own.
IN_ROPE = {"rope_theta": "rope_theta", "rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor",
           "partial_rotary_factor": "partial_rotary_factor"}  # fmt: skip
# Gemma 4's class has sizes by layer, which have no default of their own, and its smallest models are refused.
# Others' layers are those that run, and the class counts those that it holds; or rope's sections have names of its own.
OTHERWISE = ("gemma4_text", "gemma4_unified_text", "deepseek_v4")
ALIKE = [kind for kind in KINDS if kind not in OTHERWISE]
# Keys of the published configs that transformers' class does not have.
# What a class has no default for, or none that its modules take.
NEEDED = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
}
NOT_IN_CLASS = {
    ("bloom", "seq_length"),
    ("deepseek_v2", "aux_loss_alpha"),
    ("deepseek_v3", "aux_loss_alpha"),
    ("deepseek_v32", "aux_loss_alpha"),
    ("deepseek_v32", "num_nextn_predict_layers"),
    ("glm_moe_dsa", "num_nextn_predict_layers"),
    ("glm4_moe_lite", "num_nextn_predict_layers"),
    ("glm4_moe_lite", "first_k_dense_replace"),
    ("cohere2_moe", "first_k_dense_replace"),
    ("hy_v3", "num_nextn_predict_layers"),
    ("mellum", "num_nextn_predict_layers"),  # null there, which means none
    ("minimax_m2", "partial_rotary_factor"),
    ("solar_open", "partial_rotary_factor"),
}


def _fields(config: dict[str, Any]) -> dict[str, Any]:
    """The descriptor without its texts."""
    fields = import_config(config, "config.json", "m").model_dump(mode="json", exclude={"source", "notes"})
    return dict(fields)


@pytest.mark.parametrize("kind", ALIKE)
def test_the_defaults_are_those_of_the_config_class(kind: str) -> None:
    config = transformers.AutoConfig.for_model(kind)
    for key, default in architectures()[kind].defaults.items():
        table = architectures()[kind]
        if key in RULED or key in table.reads or key in table.ignored or (kind, key) in NOT_IN_CLASS:
            continue
        if key in IN_ROPE or key == "rope_local_base_freq":
            rope = config.rope_parameters
            whole = next((name for name in ("full_attention", "indexed_attention") if name in rope), None)
            if whole is not None:
                rope = rope["sliding_attention" if key == "rope_local_base_freq" else whole]
            actual = rope[IN_ROPE.get(key, "rope_theta")]
        else:
            saved = config.to_dict()  # a class whose layers differ tells the sizes of all by what it saves only
            section, _, name = key.rpartition(".")
            holder = getattr(config, section) if section else config
            actual = saved[key] if "per_layer_config" in saved and key in saved else getattr(holder, name, None)
        if default is Derived.HEAD_DIM:
            assert actual in (None, config.hidden_size // config.num_attention_heads), key
        elif default is Derived.HEADS:
            assert actual in (None, config.num_attention_heads), key
        elif default is Derived.FOUR_TIMES_HIDDEN:
            assert actual in (None, 4 * config.hidden_size), key
        else:
            assert actual == default, key
            assert key in FRACTIONS or default is None or type(actual) is type(default), key


@pytest.mark.parametrize("kind", ALIKE)
def test_the_ruled_defaults_are_those_of_the_config_class(kind: str) -> None:
    """Windows, experts and rope scaling, which no single key decides: an empty file gives the class's own default."""
    config = transformers.AutoConfig.for_model(kind)
    model = import_config({"model_type": kind, **NEEDED.get(kind, {})}, "config.json", "m")
    names = ("sliding_window", "window_size", "attention_chunk_size")
    window = next((found for name in names if (found := getattr(config, name, None))), None)
    if getattr(config, "layer_types", None):
        near = tuple(one in ("sliding_attention", "chunked_attention") for one in config.layer_types)
        assert model.sliding_layers == near
        window = window if any(near) else None
    assert (model.sliding_window or None) == (window or None)
    if getattr(config, "n_shared_experts", None):
        shared = config.n_shared_experts * config.moe_intermediate_size
        assert model.experts.shared_expert_intermediate_size == shared
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {part.get("rope_type") for part in (rope.values() if "full_attention" in rope else [rope])} - {None}
    assert (model.rope_scaling.rope_type if model.rope_scaling else "default") in (kinds or {"default"})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tiny_model_has_as_many_parameters_as_the_real_one(kind: str, seed: int) -> None:
    config = tiny_config(kind, seed)
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # inside a tiny vocabulary
    real = transformers.AutoConfig.for_model(**config, **tokens)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(real)
    ours = parameters(import_config(config, "config.json", "tiny"))
    assert ours.total == sum(weight.numel() for weight in module.parameters()), config
    assert ours.trainable == sum(weight.numel() for weight in module.parameters() if weight.requires_grad)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_transformers_saves_is_imported_to_the_same_model(kind: str, seed: int) -> None:
    """Its own spelling of today (rope_parameters, layer_types, dtype) means what the older spelling meant."""
    config = tiny_config(kind, seed)
    saved = transformers.AutoConfig.for_model(**config).to_dict() | {"model_type": kind}  # GPT-SW3's class is GPT-2's
    saved = {
        key: value for key, value in saved.items() if value is not None or key in ("q_lora_rank", "sliding_window")
    }
    saved.setdefault("q_lora_rank", None) if "q_lora_rank" in config else None
    assert _fields(saved) == _fields(config)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_changes_nothing(kind: str, seed: int) -> None:
    model = import_config(tiny_config(kind, seed), "config.json", "tiny")
    again = import_config(config_json(model), "config.json", "tiny")
    assert again == model


@pytest.mark.parametrize("name", [name for name in zoo_models() if not name.endswith("-lora")])
def test_every_zoo_model_has_a_transformers_config(name: str) -> None:
    model = load_model(name)
    config = to_transformers_config(model)
    assert config.vocab_size == model.vocab_size
    assert config.num_hidden_layers == model.num_hidden_layers


def test_a_model_that_the_class_cannot_express_is_refused() -> None:
    model = load_model("llama2-7b").model_copy(update={"qk_norm": True, "attention_sinks": True})
    assert {problem.field for problem in lost_fields(model)} == {"qk_norm", "attention_sinks"}


SCALINGS = [
    ("llama", {"rope_type": "linear", "factor": 2.0}),
    ("llama", {"type": "dynamic", "factor": 4.0}),
    ("llama", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    ("qwen2", {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
    ("gpt_oss", {"rope_type": "default"}),
    ("gemma3_text", {"rope_type": "linear", "factor": 8.0}),
    ("phi3", {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}),
]


@pytest.mark.parametrize(("kind", "scaling"), SCALINGS, ids=lambda item: item if isinstance(item, str) else "")
def test_scaled_rope_means_what_transformers_saves(kind: str, scaling: dict[str, Any]) -> None:
    config = tiny_config(kind, 0)
    config |= {"rope_scaling": scaling, "hidden_size": 8 * config["num_attention_heads"], "rope_theta": 77.0}
    ours = _fields(config)
    saved = transformers.AutoConfig.for_model(**{**config, "rope_scaling": dict(scaling)}).to_dict()
    assert _fields({key: value for key, value in saved.items() if value is not None}) == ours
    model = import_config(config, "config.json", "tiny")
    assert import_config(config_json(model), "config.json", "tiny") == model
    assert model.rope_theta == 77.0
    assert (model.rope_scaling is None) == (scaling.get("rope_type") == "default")
