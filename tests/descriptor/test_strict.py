"""YAML and JSON as a person means them, and every way in which a file can be wrong."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.descriptor.document import MAX_BYTES, Document, Place, load_yaml_strict, parse_yaml_strict
from symconfig.descriptor.json_strict import load_json_strict, parse_json_strict
from symconfig.descriptor.load import load_model
from symconfig.errors import InputError, nearest

LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n"


def _value(text: str) -> Any:
    return parse_yaml_strict(f"key: {text}", "f.yaml").data["key"]


def parsed(file: str, text: str) -> Document:
    return (parse_yaml_strict if file.endswith(".yaml") else parse_json_strict)(text, file)


def _error(file: str, text: str) -> str:
    with pytest.raises(InputError) as caught:
        parsed(file, text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("6.", 6.0),
        ("no", "no"),
        ("on", "on"),
        ("y", "y"),
        ("NO", "NO"),
        ("12:30", "12:30"),
        ("1:2:3", "1:2:3"),
        ("2026-01-01", "2026-01-01"),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("+3", 3),
        ("1_000", "1_000"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("'1e-5'", "1e-5"),
        ('"null"', "null"),
        ("core_v0.19.0", "core_v0.19.0"),
        ("=", "="),
        ("<<", "<<"),
    ],
)
def test_a_scalar_is_what_it_looks_like(text: str, value: Any) -> None:
    read = _value(text)
    assert read == value
    assert type(read) is type(value)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**90), 10**90) | st.booleans() | st.none())
def test_python_s_own_spelling_of_a_number_is_read_back(value: Any) -> None:
    text = {True: "true", False: "false", None: "null"}.get(value) if value in (True, False, None) else repr(value)
    assert _value(str(text)) == value


def test_every_key_and_value_has_its_place() -> None:
    document = parse_yaml_strict("a: 1\nb:\n  - x\n  - c: 2\n", "f.yaml")
    assert document.keys[("b", 1, "c")] == Place(4, 5)
    assert document.values[("b", 0)] == Place(3, 5)
    assert document.values[("b", 1, "c")] == Place(4, 8)


def test_all_problems_of_a_file_come_at_once() -> None:
    text = "a: 1\na: 2\nb: .nan\nc:\n  d: .inf\n  d: 1e999\n"
    assert _error("f.yaml", text).splitlines() == [
        "f.yaml:2:1: a: duplicate key, first on line 1.",
        "f.yaml:3:4: b: not a finite number (got .nan).",
        "f.yaml:5:6: c.d: not a finite number (got .inf).",
        "f.yaml:6:3: c.d: duplicate key, first on line 5.",
        "f.yaml:6:6: c.d: a number too large for a float (got 1e999).",
    ]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("f.yaml", LAUGHS, "f.yaml:1:4: anchors are not allowed"),
        ("f.yaml", "a: *b", "f.yaml:1:4: aliases are not allowed"),
        ("f.yaml", "a: !!python/object:os.system x", "tags are not allowed"),
        ("f.yaml", "a: !!float 1", "tags are not allowed"),
        ("f.yaml", "a: 1\n---\nb: 2", "more than one document"),
        ("f.yaml", "", "the file is empty"),
        ("f.yaml", "# only a comment\n", "the file is empty"),
        ("f.yaml", "a: [1, 2", "this is not YAML"),
        ("f.yaml", "a: b: c", "this is not YAML"),
        ("f.yaml", "a: 'x", "this is not YAML"),
        ("f.yaml", "a:\n\tb: 1", "this is not YAML"),
        ("f.yaml", "\x00", "this is not YAML"),
        ("f.yaml", "? [1]\n: 2", "a key must be a plain word"),
        ("f.yaml", "? {a: 1}\n: 2", "a key must be a plain word"),
        ("f.yaml", "a: " + "9" * 5000, "more than 100 digits"),
        ("config.json", '{"a": 1,\n "a": 2}', "config.json:2:2: a: duplicate key, first on line 1."),
        ("config.json", '{"b": {"c": NaN}}', "config.json:1:13: b.c: not a finite number (got NaN)."),
        ("config.json", '{"b": [-Infinity]}', "config.json:1:8: b[0]: not a finite number (got -Infinity)."),
        ("config.json", '{"b": 1e999}', "config.json:1:7: b: not a finite number (got 1e999)."),
        ("config.json", '{"a": [1,2', "the file ends in the middle, it is cut off"),
        ("config.json", '{"a": "x', "the file ends in the middle, it is cut off"),
        ("config.json", '{"a"', "the file ends in the middle, it is cut off"),
        ("config.json", "", "the file is empty"),
        ("config.json", " \n", "the file is empty"),
        ("config.json", "{'a': 1}", "this is not JSON"),
        ("config.json", "[1 2]", "this is not JSON"),
        ("config.json", '{"a": 1,}', "this is not JSON"),
        ("config.json", '{"a": 1} x', "this is not JSON"),
        ("config.json", '{"a": ' + "9" * 5000 + "}", "this is not JSON that can be read"),
        ("config.json", '["\\ud800"]', "half a surrogate pair"),
    ],
)
def test_what_is_refused_says_why(file: str, text: str, message: str) -> None:
    assert message in _error(file, text)


DEEP = {
    "f.yaml": ["[" * 10_000, "{a: " * 10_000, "- " * 10_000, "[[],[" * 5_000, "? " * 10_000],
    "config.json": ["[" * 10_000, '{"a":' * 10_000, "[[]," * 10_000, "[" * 10_000 + "]" * 10_000, '{"a":[' * 1_000_000],
}


@pytest.mark.parametrize(("file", "text"), [(file, text) for file, texts in DEEP.items() for text in texts])
def test_deep_nesting_is_a_quick_message(file: str, text: str) -> None:
    start = time.process_time()
    message = _error(file, text)
    assert "nested too deeply" in message or "key must be a plain word" in message
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "text", ["[" + "1," * 2_000_000 + "]", "a: 1\n" * 500_000, "x " * 2_000_000, "- \n" * 1_000_000]
)
def test_a_long_file_is_read_or_refused_in_seconds(text: str) -> None:
    start = time.process_time()
    with contextlib.suppress(InputError):
        parse_yaml_strict(text, "f.yaml")
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: \xff\xfe\n", ":2: the file is not UTF-8 text"),
        (b"#" * (MAX_BYTES + 1), "the file is too large (got over 8,388,608 bytes"),
    ],
)
def test_a_file_that_is_no_text_or_too_large_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_yaml_strict(path)
    assert message in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert load_yaml_strict(path).data == {"a": 1, "b": 2}


@pytest.mark.parametrize("name", ["missing.yaml", ".", "x" * 300, "nul\0.yaml"])
def test_a_path_that_cannot_be_read_is_a_message(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        load_yaml_strict(tmp_path / name)


@pytest.mark.parametrize("file", ["f.yaml", "config.json"])
@given(st.text(max_size=200))
def test_no_text_crashes_the_loader(file: str, text: str) -> None:
    try:
        parsed(file, text)
    except InputError as error:
        assert error.problems  # noqa: PT017  (an error without a problem would be an empty message)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


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


def test_many_values_are_a_quick_message() -> None:
    start = time.process_time()
    assert "too many values" in _error("config.json", "[" + "1," * 2_000_000 + "1]")
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


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": 1}')
    assert load_json_strict(path).data == {"a": 1}


def test_equally_similar_names_of_a_set_are_in_one_order() -> None:
    names = [f"abc{letter}" for letter in "hgfedcba"]
    assert nearest("abc", set(names)) == "abca or abcb or abcc"
    assert nearest("abc", names) == "abch or abcg or abcf"
