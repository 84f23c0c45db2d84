"""Families with attention of their own: what is read of their layers, written back, or refused by its key."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.config_writer import config_json, unsaid
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from tests.descriptor.small_configs import small_config
from tests.descriptor.transformers_classes import to_transformers_config

WRITTEN: list[tuple[str, dict[str, Any]]] = [
    ("lara_mini", {"layer_types": ["full_attention", "linear_attention"] * 4}),
    ("mimo_v2_flash", {"attention_value_scale": 0.5, "v_head_dim": 6}),
    ("mimo_v2_flash", {"attention_value_scale": None, "layer_types": ["sliding_attention"] * 8}),
]


def read(kind: str, changed: dict[str, Any]) -> ModelDescriptor:
    """Import a small model of a family."""
    return import_config({**small_config(kind), **changed}, "config.json", "small")


@pytest.mark.parametrize(("kind", "changed"), WRITTEN)
def test_what_is_read_is_written_back(kind: str, changed: dict[str, Any]) -> None:
    model = read(kind, changed)
    assert model != read(kind, {})
    assert list(unsaid(model)) == []
    assert import_config(config_json(model), "config.json", "small").mixers == model.mixers


@pytest.mark.parametrize(
    ("kind", "changed", "field"),
    [
        ("apertus1p5_text", {"output_vocab_size": 60}, "output_vocab_size"),
        ("lara_mini", {"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_what_cannot_be_said_is_refused_by_its_key(kind: str, changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        read(kind, changed)
    assert field in {problem.field for problem in caught.value.problems}


@pytest.mark.parametrize("kind", dict.fromkeys(kind for kind, _ in WRITTEN))
def test_what_is_written_is_a_file_of_the_class(kind: str) -> None:
    pytest.importorskip("transformers")
    made = to_transformers_config(read(kind, {}))
    assert made.model_type == kind
    assert made.num_hidden_layers == small_config(kind)["num_hidden_layers"]


def test_layers_are_what_the_class_makes_of_them() -> None:
    mimo = read("mimo_v2_flash", {})
    assert (mimo.num_key_value_heads, mimo.mixers[0].sizes["wide_key_value_heads"]) == (4, 2)
    assert mimo.layer_kinds[:2] == ("dense_wide_attention", "moe_window")
    assert read("lara_mini", {}).layer_kinds[:4] == (
        "moe_gated_delta_net", "moe_window", "moe_gated_delta_net", "moe_nope",
    )  # fmt: skip
