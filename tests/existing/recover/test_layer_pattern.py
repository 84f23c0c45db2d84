"""List expressions of Megatron-LM, read without executing them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.existing.recover.layers import leading_and_every, moe_layers
from symconfig.formats.layer_pattern import layer_pattern, pattern


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
