"""config.json as plain JSON: whatever is wrong with it is a message, soon."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.descriptor.document import Place
from symconfig.descriptor.json_strict import load_json_strict, parse_json_strict
from symconfig.descriptor.load import load_model
from symconfig.errors import InputError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def _error(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_json_strict(text, "config.json")
    return str(caught.value)


@given(VALUES, st.sampled_from([None, 1]))
def test_what_json_writes_is_read_back_with_a_place_for_every_value(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    document = parse_json_strict(text, "f")
    assert document.data == value

    def count(item: Any) -> int:
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        return 1 + sum(count(part) for part in inner)

    assert len(document.values) == count(value)


def test_places_are_lines_and_columns() -> None:
    document = parse_json_strict('{\n "a": 1,\n "b": {"c": [1, {"d": "}\\""}]}}', "f")
    assert document.keys[("b", "c", 1, "d")] == Place(3, 18)
    assert document.values[("b", "c", 0)] == Place(3, 14)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n "a": 2}', "config.json:2:2: a: duplicate key, first on line 1."),
        ('{"b": {"c": NaN}}', "config.json:1:13: b.c: not a finite number (got NaN)."),
        ('{"b": [-Infinity]}', "config.json:1:8: b[0]: not a finite number (got -Infinity)."),
        ('{"b": 1e999}', "config.json:1:7: b: not a finite number (got 1e999)."),
        ('{"a": [1,2', "the file ends in the middle, it is cut off"),
        ('{"a": "x', "the file ends in the middle, it is cut off"),
        ('{"a"', "the file ends in the middle, it is cut off"),
        ("", "the file is empty"),
        (" \n", "the file is empty"),
        ("{'a': 1}", "this is not JSON"),
        ("[1 2]", "this is not JSON"),
        ('{"a": 1,}', "this is not JSON"),
        ('{"a": 1} x', "this is not JSON"),
        ('{"a": ' + "9" * 5000 + "}", "this is not JSON that can be read"),
        ('["\\ud800"]', "half a surrogate pair"),
    ],
)
def test_what_is_refused_says_why(text: str, message: str) -> None:
    assert message in _error(text)


@pytest.mark.parametrize(
    "text", ["[" * 10_000, '{"a":' * 10_000, "[[]," * 10_000, "[" * 10_000 + "]" * 10_000, '{"a":[' * 1_000_000]
)
def test_deep_nesting_is_a_quick_message(text: str) -> None:
    start = time.process_time()
    assert "nested too deeply" in _error(text)
    assert time.process_time() - start < 1


def test_many_values_are_a_quick_message() -> None:
    start = time.process_time()
    assert "too many values" in _error("[" + "1," * 2_000_000 + "1]")
    assert time.process_time() - start < 1


def test_a_hundred_megabytes_are_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as stream:
        stream.write(b'{"model_type": "llama", "x": "')
        stream.truncate(100_000_000)  # a hole in the file: nothing is written
    start = time.process_time()
    with pytest.raises(InputError, match="too large"):
        load_model(str(path))
    assert time.process_time() - start < 1


@given(st.text(max_size=200))
def test_no_text_crashes_the_loader(text: str) -> None:
    try:
        parse_json_strict(text, "f")
    except InputError as error:
        assert error.problems  # noqa: PT017  (an error without a problem would be an empty message)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": 1}')
    assert load_json_strict(path).data == {"a": 1}
