"""A descriptor as config.json: the inverse of the import, for what tables say and for what only rules read."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.config_writer import config_json, lost_fields
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.load import load_model
from symconfig.errors import InfeasibleError
from tests.descriptor.small_configs import published_keys
from tools.families import default_model

RULED = published_keys()["ruled"]


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
