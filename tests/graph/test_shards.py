"""Parts multiply to the whole, and parameters are counted from the operators' weights."""

from __future__ import annotations

import pytest

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.graph.derive import derive
from symconfig.graph.implementation import Implementation
from symconfig.graph.model import blocks, derived, sequence, structure
from symconfig.graph.scheme import Scheme
from tests.graph.support import SEQUENCE, block, numbers
from tests.sample_models import sample_model

NAMES = ["llama2-13b", "llama3.1-70b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "gpt3-175b"]
DEGREES = {"tp": 2, "cp": 2, "dp": 8, "ep": 4, "etp": 2}


@pytest.mark.parametrize("name", NAMES)
def test_weight_shards_multiply_to_the_whole(name: str) -> None:
    """Each weight on a rank, times the ranks that hold other parts of it, is the weight."""
    model = sample_model(name)
    for kind in blocks(model):
        for weight in block(model, kind, SEQUENCE).weights:
            whole = weight.whole.value(numbers(model))
            parts = whole / weight.elements.value(numbers(model, **DEGREES))
            # Experts over ep x etp, but the bias after the contraction over ep alone; all else over tp.
            assert parts in ({4.0 if weight.name == "expert_down_proj.bias" else 8.0} if weight.expert else {1.0, 2.0})


def test_parts_of_a_model_in_order() -> None:
    kinds = sequence(sample_model("deepseek-v3"))
    assert kinds[:5] == ("embedding", "dense", "dense", "dense", "moe")
    assert kinds[-3:] == ("moe", "mtp", "head")
    assert len(kinds) == 61 + 3


@pytest.mark.parametrize("name", zoo_models())
def test_blocks_do_not_depend_on_what_the_structure_leaves_out(name: str) -> None:
    model = load_model(name)
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
             "max_position_embeddings")  # fmt: skip
    larger = {size: 2 * getattr(model, size) for size in sizes if getattr(model, size) != 1}  # one head is a structure
    other = model.model_copy(update=larger | {"name": "twice as large"})
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
