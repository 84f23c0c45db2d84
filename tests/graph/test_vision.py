"""A vision tower's operators: FLOP and saved bytes against Transformers' modules, gradients, splits, collectives."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from symconfig.cost.work import block_flops
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.vision import KINDS, Vision
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph.block import Place
from symconfig.graph.derive import derive
from symconfig.graph.derived import DerivedBlock, Phase, recompute_policy
from symconfig.graph.implementation import Implementation
from symconfig.graph.layout import Kind
from symconfig.graph.model import blocks, derived, sequence
from symconfig.graph.scheme import Scheme
from tests.graph.saved import keeping
from tests.graph.support import PLAIN, SEQUENCE, chosen, held_bytes, kept, numbers
from tests.sample_models import sample_model
from tests.towers import SMALL, TEXT, look, module, tower

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


def model_of(vision: Vision, **changes: Any) -> ModelDescriptor:
    made = sample_model("llama2-13b", **TEXT)
    return made.model_copy(update={"vision": vision.model_copy(update={"images_per_sequence": 1.0, **changes})})


def small(kind: str) -> Vision:
    """A small tower; where it takes any resolution, with images whose windows are not all whole."""
    vision = tower(kind)
    return vision.model_copy(update={"image_size": 40}) if vision.by_image else vision


def of_tower(model: ModelDescriptor, how: Implementation, scheme: Scheme = PLAIN) -> dict[str, DerivedBlock]:
    return {kind: block for kind, block in derived(model, how, scheme).items() if kind in KINDS}


@pytest.mark.parametrize("kind", SMALL)
def test_flops_are_those_that_torch_counts(kind: str) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    vision = small(kind)
    built = module(kind)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        look(built, kind, vision)
    model = model_of(vision)
    each = block_flops(of_tower(model, DEEPSPEED.implementation), numbers(model), (Phase.FORWARD,))
    assert sum(each[name] * times for name, times in Counter(vision.kinds).items()) == counter.get_total_flops()


def saved_bytes(kind: str, depth: int, everywhere: bool) -> int:
    """Bytes of all storages, other than parameters, that autograd holds of a tower of so many layers."""
    section = dict(SMALL[kind]["vision_config"])
    section["depth" if "depth" in section else "num_hidden_layers"] = depth
    if "fullatt_block_indexes" in section:
        section["fullatt_block_indexes"] = list(range(depth)) if everywhere else []
    if "deepstack_visual_indexes" in section:
        section["deepstack_visual_indexes"] = [0]
    built = module(kind, vision_config=section)
    vision = tower(kind)
    vision = vision.model_copy(update={"image_size": 32}) if vision.by_image else vision
    with keeping(built) as kept:
        look(built, kind, vision)
    return kept.bytes()


@pytest.mark.parametrize("kind", SMALL)
def test_a_layer_of_a_tower_saves_what_is_derived(kind: str) -> None:
    vision = tower(kind)
    vision = vision.model_copy(update={"image_size": 32}) if vision.by_image else vision
    model = model_of(vision)
    for name, block in of_tower(model, DEEPSPEED.implementation).items():
        if name in ("vision_layer", "vision_window_layer"):
            found = held_bytes(block, recompute_policy(block, frozenset()), numbers(model))
            everywhere = name == "vision_layer"
            assert found == saved_bytes(kind, 2, everywhere) - saved_bytes(kind, 1, everywhere)


def test_a_whole_tower_saves_what_is_derived_but_for_what_is_made_once() -> None:
    """Gemma 3: a copy of the patches in the order that pooling wants; of the projector's norm the weight, 1 + w in
    fp32, and its result before the weight in fp32, too."""
    vision = tower("gemma3").model_copy(update={"num_hidden_layers": 2})
    model, how = model_of(vision), DEEPSPEED.implementation
    each = {k: held_bytes(b, recompute_policy(b, frozenset()), numbers(model)) for k, b in of_tower(model, how).items()}
    total = sum(each[name] * times for name, times in Counter(vision.kinds).items())
    pooled = 2 * 16 * 32
    weight, wider = 4 * 32, (4 - 2) * 4 * 32
    assert total + pooled + weight + wider == saved_bytes("gemma3", 2, True)


def test_a_frozen_tower_runs_forward_only_and_keeps_nothing() -> None:
    model = model_of(small("qwen3_vl"), frozen=True, projector_frozen=True)
    for block in of_tower(model, DEEPSPEED.implementation).values():
        assert {work.phase for work in block.work} == {Phase.FORWARD}
        assert kept(block) == set() == kept(block, "layer")
        assert not recompute_policy(block, frozenset({"layer"})).rerun
        assert all(weight.frozen for weight in block.weights)
    merge = derived(model, DEEPSPEED.implementation, SEQUENCE)["embedding"]
    assert not chosen(merge, "tp", Phase.INPUT, "image_features")


def test_a_trained_projector_behind_a_frozen_tower_has_gradients_from_its_first_weight_on() -> None:
    model = model_of(small("gemma3"), frozen=True)
    found = of_tower(model, DEEPSPEED.implementation)
    phases: dict[str, set[Phase]] = {work.op: set() for work in found["vision_projector"].work}
    for work in found["vision_projector"].work:
        phases[work.op].add(work.phase)
    assert phases["norm_after"] == phases["projector.0"] == {Phase.FORWARD}
    assert phases["projector.2"] == set(Phase)
    assert {w.name for w in found["vision_projector"].weights if w.frozen} == {"norm_after.weight", "norm_after.bias"}
    assert {work.phase for work in found["vision_layer"].work} == {Phase.FORWARD}


def test_a_linear_layer_behind_what_is_frozen_makes_no_gradient_of_its_input() -> None:
    found = of_tower(model_of(small("llava"), frozen=True), DEEPSPEED.implementation)["vision_projector"]
    assert {work.phase for work in found.work if work.op == "projector.0"} == {Phase.FORWARD, Phase.WEIGHT}
    assert {work.phase for work in found.work if work.op == "projector.2"} == set(Phase)


def test_a_layer_is_recomputed_where_the_framework_does() -> None:
    model = model_of(small("mistral3"))
    assert kept(of_tower(model, DEEPSPEED.implementation)["vision_layer"], "layer") == {"vision_in"}
    whole = of_tower(model, Implementation())["vision_layer"]
    assert kept(whole, "layer") == kept(whole)


def test_a_tower_is_whole_on_every_rank() -> None:
    model = model_of(small("qwen3_vl"))
    assert not any(chosen(block, "tp") for block in of_tower(model, Implementation(), SEQUENCE).values())


def test_images_are_put_into_the_stream_before_ranks_share_out_the_sequence() -> None:
    """The look-up's partial sums are all-reduced, not scattered; backward the stream's gradient is gathered."""
    model = model_of(small("gemma3"))
    block = derive(blocks(model)["embedding"], SEQUENCE)
    assert [c.kind for c in chosen(block, "tp", Phase.FORWARD, "embedded")] == [Kind.ALL_REDUCE]
    assert [c.kind for c in chosen(block, "tp", Phase.INPUT, "merged")] == [Kind.ALL_GATHER]
    assert not chosen(block, "tp", tensor="image_features")


def test_work_follows_the_images() -> None:
    model = model_of(small("gemma3"))
    twice = model_of(small("gemma3"), images_per_sequence=2.0)
    one, two = (block_flops(of_tower(each, Implementation()), numbers(each, micro_batch=3)) for each in (model, twice))
    assert two == {kind: 2 * flops for kind, flops in one.items()}
    assert blocks(model).keys() == blocks(twice).keys()


def test_encoders_stand_before_the_embedding() -> None:
    model = model_of(small("qwen2_5_vl"))
    order = sequence(model)
    first = ("vision_embedding", "vision_layer", "vision_window_layer", "vision_window_layer", "vision_projector")
    assert order[:6] == (*first, "embedding")
    assert [block.place for block in blocks(model).values()][:5] == [*[Place.ENCODER] * 4, Place.FIRST]
