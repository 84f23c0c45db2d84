"""Layers are read back from Megatron-LM's options: list expressions, and blocks in attention's place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.descriptor.meaning import meaning
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.existing.recover.layers import leading_and_every, letters, moe_layers
from symconfig.existing.recover.megatron import stages
from symconfig.existing.recover.model import described
from symconfig.formats.layer_pattern import layer_pattern, pattern
from symconfig.frameworks.megatron.hybrid import parts_of_layer
from symconfig.plans import pipeline_layout
from symconfig.render import megatron
from tests.existing.recover.options import names_of
from tests.sample_plans import sample_plan
from tests.verify.structures import granite_4, of_pattern, qwen3_next

SHAPE = (
    "--hidden-size 1024 --num-attention-heads 16 --vocab-size 50257 --tokenizer-type NullTokenizer --swiglu "
    "--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec "
)
NO_MLP = qwen3_next(mlp_layers=[True] * 7 + [False], experts=None, intermediate_size=5120)
MODELS: dict[str, tuple[ModelDescriptor, dict[str, Any]]] = {
    "qwen3-next": (qwen3_next(), {"pp": 2, "ep": 4}),
    "qwen3-next with predictions": (qwen3_next(num_nextn_predict_layers=1), {"pp": 2, "ep": 4}),
    "a gated delta net, a layer without MLP": (NO_MLP, {"pp": 2, "ep": 1}),
    "nemotron-h": (of_pattern("M-M-MM*-MM-"), {"pp": 2}),
    "nemotron-h of pairs": (of_pattern("M-M-M*-M-M-M*-M"), {}),
    "nemotron 3": (of_pattern("MEM*EMEM*EME", position="rope", num_nextn_predict_layers=2), {"pp": 2, "vpp": 2}),
    "windows and rope by layer": (
        granite_4(
            position="rope",
            sliding_window=512,
            sliding_window_pattern=[place == 3 for place in range(8)],
            rope_layers=[place != 7 for place in range(8)],
        ),
        {"ep": 4},
    ),
    "granite 4": (granite_4(), {"pp": 2, "vpp": 2, "ep": 4}),
    "mamba alone": (of_pattern("M" * 6), {"pp": 2}),
}


@pytest.mark.parametrize("name", MODELS)
def test_layers_and_stages_are_read_back(name: str) -> None:
    model, degrees = MODELS[name]
    plan = sample_plan(model, "h100", dp=4, **degrees)
    names = names_of(megatron.arguments(plan))
    uneven = parts_of_layer(model) is None  # whose parts alone would be read as layers
    found = described(names, seq_length=2048, named=model if uneven else None)
    assert meaning(found.model) == meaning(model)
    _, said = stages(names, found.model.num_hidden_layers, plan.best.configuration.pp, found.model)
    if layout := said.get("pipeline_layout"):
        counted = [each.count("t") for each in pipeline_layout.expanded(layout)]
        at_ends = ("embedding", "head", "mtp")
        assert counted == [len([kind for kind in chunk if kind not in at_ends]) for chunk in plan.best.chunks]


def test_pairs_are_one_layer_unless_the_named_models_are_not() -> None:
    """Both are the same computation."""
    assert letters("M-*E|M-ME")[0] == (("M-", "*E"), ("M-", "ME"))
    assert letters("M-*|-M-")[0] == (("M", "-", "*"), ("-", "M", "-"))
    assert letters("M-*-", of_pattern("M-*-"))[0] == (("M", "-", "*", "-"),)
    assert letters("M-M-/*-/*-")[1] == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--hybrid-layer-pattern M-Q-", "--hybrid-layer-pattern: cannot be predicted: the layers are not said"),
        ("--hybrid-layer-pattern M-D-", "need letters of"),
        ("--hybrid-layer-pattern M-+-", "latent attention without norms"),
        ("--num-layers 4 --experimental-attention-variant dsa", "sparse attention is not described"),
        ("--num-layers 4 --experimental-attention-variant gated_delta_net", "need --linear-attention-freq"),
        (
            "--num-layers 4 --experimental-attention-variant gated_delta_net --linear-attention-freq [1]*3",
            "one value for each of 4 layers, not 3",
        ),
    ],
)
def test_what_is_not_described_is_refused_by_its_option(options: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        described(names_of(SHAPE + options), seq_length=2048)
    assert says in str(caught.value)


def test_heads_of_mamba_follow_the_hidden_size_where_nobody_says_them() -> None:
    found = described(names_of(f"{SHAPE} --hybrid-override-pattern M-M-"), seq_length=2048).model
    assert found.mixer("mamba2").sizes["mamba_num_heads"] == 2 * 1024 // 64
    assert found.num_hidden_layers == 2


def test_every_nth_layer_has_attention_as_the_option_counts() -> None:
    options = SHAPE.partition("--spec")[0] + (
        "--num-layers 8 --experimental-attention-variant gated_delta_net --linear-attention-freq 4 "
        "--linear-num-value-heads 16"
    )
    found = described(names_of(options), seq_length=2048).model
    (mixer,) = found.mixers
    assert mixer.layers == (True, True, True, False) * 2
    assert (mixer.sizes["linear_num_value_heads"], mixer.sizes["linear_num_key_heads"]) == (16, 16)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("(2)", 2),
        (3, 3),
        ("[1]*3", (1, 1, 1)),
        ("3*[1]", (1, 1, 1)),
        ("([0]*2+[1,1]*2)", (0, 0, 1, 1, 1, 1)),
        ("[0, 1, 1]", (0, 1, 1)),
        ("(0,1,)", (0, 1)),
        ("([1]+([0]*2))*2", (1, 0, 0, 1, 0, 0)),
        ((1, 0), (1, 0)),
        ("[1+1]*2", (2, 2)),
    ],
)
def test_an_expression_has_the_value_that_python_gives_it(text: str, value: object) -> None:
    assert layer_pattern(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[1",
        "1]",
        "[1]*[2]",
        "[1]+2",
        "[[1]]",
        "[1]*1000000000",
        "__import__('os')",
        "[1]*3 [2]",
        "-1",
        "1.5",
        "(" * 5000,
        "[1]**2",
        "[1],",
        True,
        None,
        "[0]*999999999+[1]*999999999",
        "9" * 30,
    ],
)
def test_what_is_no_such_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        layer_pattern(text)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_a_rendered_pattern_is_read_back(flags: list[bool]) -> None:
    assert layer_pattern(pattern(tuple(flags))) == tuple(map(int, flags))


@given(st.integers(0, 20), st.integers(1, 20), st.integers(1, 30))
def test_layers_of_a_descriptor_are_found_again(first: int, every: int, count: int) -> None:
    moe = tuple(i >= first and (i - first) % every == every - 1 for i in range(count))
    found = leading_and_every(moe)
    if not any(moe):
        assert found is None
        return
    assert found is not None
    first, every = found
    assert tuple(i >= first and (i - first) % every == every - 1 for i in range(count)) == moe


def test_a_number_is_every_nth_layer_from_the_first_on() -> None:
    assert moe_layers(1, 3) == (True, True, True)
    assert moe_layers(2, 3) == (True, False, True)
    assert leading_and_every((True, False, True, False)) is None
    assert leading_and_every((True, True, False)) is None
