"""JSON with the bytes of its parts, as DeepSpeed reads it."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.descriptor.document import KeyPath
from symconfig.errors import InputError
from symconfig.existing.launch.reading import Tree
from symconfig.existing.launch.text import Text
from symconfig.existing.launch.trees import parse_json

NUMBERS = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)


def tree(source: str | bytes) -> Tree:
    return parse_json(Text("ds.json", source.encode() if isinstance(source, str) else source))


def at(read: Tree, path: KeyPath) -> Any:
    found = read.data
    for key in path:
        found = found[key]
    return found


def problems(source: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        tree(source)
    return [str(problem) for problem in caught.value.problems]


@settings(deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 2]))
def test_the_data_are_those_of_json_and_every_span_is_exactly_its_value(value: Any, ascii: bool, indent: Any) -> None:
    read = tree(json.dumps(value, ensure_ascii=ascii, indent=indent))
    assert read.data == value
    for path, span in read.spans.items():
        assert json.loads(read.text.at(span.value)) == at(read, path)
        if span.key is not None:
            assert json.loads(read.text.at(span.key)) == path[-1]
    assert () in read.spans


def test_a_number_with_an_exponent_is_a_float_and_one_without_is_not() -> None:
    read = tree('{"a": 5e8, "b": 500000000, "c": 1.0}')
    assert [type(value) for value in read.data.values()] == [float, int, float]


def test_comments_and_a_comma_after_the_last_are_read() -> None:
    source = """// the job of March
    {"zero_optimization": {"stage": 2, # "stage": 3
        /* both
           of these */ "buckets": [1, 2,],},
    }"""
    read = tree(source)
    assert read.data == {"zero_optimization": {"stage": 2, "buckets": [1, 2]}}
    place = read.spans[("zero_optimization", "buckets")].value
    assert (place.line, read.text.at(place)) == (4, "[1, 2,]")


def test_a_comment_sign_in_a_string_is_no_comment() -> None:
    assert tree('{"a": "http://x#y /* z */"}').data == {"a": "http://x#y /* z */"}


def test_bytes_are_counted_and_not_characters() -> None:
    read = tree('\ufeff{"ä": "é", "b": 7}')
    assert read.text.at(read.spans[("b",)].value) == "7"
    assert read.text.at(read.spans[("ä",)].key or read.spans[()].value) == '"ä"'


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "the file is empty"),
        ("// nothing", "the file is empty"),
        ('{"a": [1', "cut off"),
        ('{"a" 1}', "ds.json:1:6: this is not JSON: Expecting ':' delimiter"),
        ('{\n"a": 1 "b": 2}', "ds.json:2:8: this is not JSON: Expecting ',' delimiter"),
        ('{"a": hello}', "Expecting value"),
        ("{c: 3}", "Expecting property name enclosed in double quotes"),
        ("{} {}", "Extra data"),
        ('{"a": 1,\n"a": 2}', "ds.json:2:1: a: duplicate key, first on line 1"),
        ('{"a": NaN}', "not a finite number"),
        ('{"a": 1e999}', "not a finite number"),
        ('{"a": "\\ud800"}', "half a surrogate pair"),
        ("[" * 200 + "]" * 200, "nested too deeply"),
        ("/* open", "this is not JSON"),
    ],
)
def test_what_is_no_json_is_said(source: str, says: str) -> None:
    assert any(says in text for text in problems(source)), problems(source)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(InputError, match="not UTF-8"):
        tree(b'{"a": "\xff"}')


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text("{}[]:,\"'\\#/*0e-. \n", max_size=40).map(str.encode))
def test_nothing_but_an_input_error_comes_of_rubbish(source: bytes) -> None:
    with suppress(InputError):
        parse_json(Text("ds.json", source))


def test_a_file_in_one_line_takes_seconds_at_most() -> None:
    start = time.process_time()
    read = tree('{"x": [' + ", ".join(f'"é{index}"' for index in range(50_000)) + "]}")
    last = read.spans[("x", 49_999)].value
    assert (last.line, read.text.at(last)) == (1, '"é49999"')
    assert last.column == len(read.text.data.decode()) - len('"é49999"]}') + 1
    assert time.process_time() - start < 8


def test_a_mebibyte_takes_seconds_at_most() -> None:
    start = time.process_time()
    with pytest.raises(InputError):
        tree("[" + "[1,2],\n" * 150_000 + "]")
    assert time.process_time() - start < 8
