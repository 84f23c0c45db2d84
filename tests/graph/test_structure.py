"""Models that differ in sizes only share their derived blocks."""

from __future__ import annotations

import pytest

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.graph.derive import derive
from symconfig.graph.implementation import Implementation
from symconfig.graph.model import blocks, derived, structure
from symconfig.graph.scheme import Scheme


@pytest.mark.parametrize("name", zoo_models())
def test_blocks_do_not_depend_on_what_the_structure_leaves_out(name: str) -> None:
    model = load_model(name)
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
             "max_position_embeddings")  # fmt: skip
    other = model.model_copy(update={size: 2 * getattr(model, size) for size in sizes} | {"name": "twice as large"})
    assert structure(other) == structure(model)
    how, scheme = Implementation(), Scheme(True)
    apart = {kind: derive(block, scheme) for kind, block in blocks(other, how).items()}
    assert apart == dict(derived(model, how, scheme))


def test_another_structure_has_other_blocks() -> None:
    model = load_model("llama2-13b")
    for change in ({"qkv_bias": True}, {"gated_mlp": False}, {"hidden_dropout": 0.1}, {"qk_norm": True}):
        other = model.model_copy(update=change)
        how, scheme = Implementation(), Scheme(True)
        assert structure(other) != structure(model)
        assert dict(derived(other, how, scheme)) != dict(derived(model, how, scheme))
