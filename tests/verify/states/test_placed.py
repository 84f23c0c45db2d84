"""Every operator of the zoo's blocks has its place in each list of operators by name, and no list has others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import get_args

import pytest

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.behaviour import usual
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.frameworks.megatron.behaviour import TransformerImpl
from symconfig.graph.derived import DerivedBlock
from symconfig.graph.dims import elements
from symconfig.graph.model import blocks, derived, dim_sizes, sequence
from symconfig.graph.scheme import Scheme
from symconfig.verify.megatron_saved import LAYER_ITSELF, MODULE_OF, foreign
from symconfig.verify.states.inventory import REGISTRATIONS
from symconfig.verify.states.transformers import registered
from tests.sample_models import sample_model
from tests.verify.structures import of_pattern, qwen3_next
from tests.zoo_limits import NOT_IN_MEGATRON

# Megatron-LM trains no adapters, and has no words for some models. The last two are like no model of the zoo, but
# Megatron's modules can be like them.
MODELS = {
    name: model
    for name in zoo_models()
    if (model := load_model(name)).adapter is None and NOT_IN_MEGATRON.get(name, "rope").startswith("rope")
}
MODELS["experts without gates in them"] = sample_model("deepseek-v3", gated_mlp=False, hidden_act="gelu")
_SHARED = MODELS["deepseek-v3"].model_dump(mode="json", by_alias=True)["experts"] | {"shared_expert_gate": True}
MODELS["a shared expert behind a gate"] = sample_model("deepseek-v3", experts=_SHARED)


MIXED = (qwen3_next(), of_pattern("M-*-"))


def every_block(impl: TransformerImpl, model: ModelDescriptor) -> Iterator[tuple[str, DerivedBlock]]:
    how = usual("megatron", "hopper", impl).implementation
    for sequence_parallel, shared_heads in product((False, True), repeat=2):
        yield from derived(model, how, Scheme(sequence_parallel, shared_heads=shared_heads)).items()


def made(name: str) -> set[str]:
    """Operators of Megatron's own layers that make something which may be kept."""
    return {
        held.producer
        for kind, block in every_block("local", MODELS[name])
        if kind not in ("embedding", "head")
        for held in block.held
        if held.producer
    }


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if foreign(model) is None])
def test_what_a_layer_keeps_is_made_by_a_module_of_megatrons(name: str) -> None:
    assert made(name) - MODULE_OF.keys() == set()


def test_no_module_names_an_operator_that_keeps_nothing() -> None:
    assert MODULE_OF.keys() - set().union(*(made(name) for name in MODELS if foreign(MODELS[name]) is None)) == set()
    assert LAYER_ITSELF in MODULE_OF.values()


@pytest.mark.parametrize("impl", get_args(TransformerImpl))
def test_every_weight_is_registered_somewhere_and_no_name_is_without_one(impl: TransformerImpl) -> None:
    models = [*MODELS.values(), *MIXED, load_model("qwen2.5-7b-lora")]  # with Megatron-Bridge's adapters on every part
    found = [block for model in models for _, block in every_block(impl, model)]
    held = [{shard.name.partition(".")[0] for shard in block.weights} for block in found]
    for operators in held:
        REGISTRATIONS[impl].order(operators)
    named = {name for order in REGISTRATIONS[impl].orders for run in order for name in run}
    assert named - set().union(*held) == set()


@pytest.mark.parametrize("name", zoo_models())
def test_transformers_classes_hold_all_that_the_model_has(name: str) -> None:
    model = load_model(name)
    held, sizes = blocks(model, DEEPSPEED.implementation), dim_sizes(model)
    weights = [
        weight
        for kind in sequence(model)
        if kind != "mtp"
        for op in held[kind].operators
        for weight in op.weights
        if not (model.tie_word_embeddings and weight.name == "lm_head.weight")
    ]
    assert sum(item.elements for item in registered(model)) == sum(
        round(elements(weight.dims).value(sizes)) for weight in weights if not weight.shared
    )
