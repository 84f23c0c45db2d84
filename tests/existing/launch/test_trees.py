"""JSON as DeepSpeed reads it, and YAML of other programs, with the bytes of their parts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from symconfig.descriptor.document import KeyPath
from symconfig.errors import InputError
from symconfig.existing.launch.reading import Tree
from symconfig.existing.launch.text import Text
from symconfig.existing.launch.trees import parse_json, parse_yaml

NUMBERS = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
OF_JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)


def of_json(source: str | bytes) -> Tree:
    return parse_json(Text("ds.json", source.encode() if isinstance(source, str) else source))


def at(read: Tree, path: KeyPath) -> Any:
    found = read.data
    for key in path:
        found = found[key]
    return found


def problems(source: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        of_json(source)
    return [str(problem) for problem in caught.value.problems]


@given(OF_JSON, st.booleans(), st.sampled_from([None, 2]))
def test_the_data_are_those_of_json_and_every_span_is_exactly_its_value(value: Any, ascii: bool, indent: Any) -> None:
    read = of_json(json.dumps(value, ensure_ascii=ascii, indent=indent))
    assert read.data == value
    for path, span in read.spans.items():
        assert json.loads(read.text.at(span.value)) == at(read, path)
        if span.key is not None:
            assert json.loads(read.text.at(span.key)) == path[-1]
    assert () in read.spans


def test_a_number_with_an_exponent_is_a_float_and_one_without_is_not() -> None:
    read = of_json('{"a": 5e8, "b": 500000000, "c": 1.0}')
    assert [type(value) for value in read.data.values()] == [float, int, float]


def test_comments_and_a_comma_after_the_last_are_read() -> None:
    source = """// the job of March
    {"zero_optimization": {"stage": 2, # "stage": 3
        /* both
           of these */ "buckets": [1, 2,],},
    }"""
    read = of_json(source)
    assert read.data == {"zero_optimization": {"stage": 2, "buckets": [1, 2]}}
    place = read.spans[("zero_optimization", "buckets")].value
    assert (place.line, read.text.at(place)) == (4, "[1, 2,]")


def test_a_comment_sign_in_a_string_is_no_comment() -> None:
    assert of_json('{"a": "http://x#y /* z */"}').data == {"a": "http://x#y /* z */"}


def test_bytes_are_counted_and_not_characters() -> None:
    read = of_json('\ufeff{"ä": "é", "b": 7}')
    assert read.text.at(read.spans[("b",)].value) == "7"
    assert read.text.at(read.spans[("ä",)].key or read.spans[()].value) == '"ä"'


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "the file is empty"),
        ("// nothing", "the file is empty"),
        ('{"a" 1}', "ds.json:1:6: this is not JSON: Expecting ':' delimiter"),
        ('{\n"a": 1 "b": 2}', "ds.json:2:8: this is not JSON: Expecting ',' delimiter"),
        ('{"a": hello}', "Expecting value"),
        ("{c: 3}", "Expecting property name enclosed in double quotes"),
        ("{} {}", "Extra data"),
        ('{"a": 1,\n"a": 2}', "ds.json:2:1: a: duplicate key, first on line 1"),
        ("/* open", "this is not JSON"),
    ],
)
def test_what_is_no_json_is_said(source: str, says: str) -> None:
    assert any(says in text for text in problems(source)), problems(source)


RUBBISH = st.text("{}[]:,\"'\\#/*0e-. \n", max_size=40) | st.text("ab:-&*!<>|{}[],'\"#? \n\t€", max_size=40)


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
@given((st.text(max_size=40) | RUBBISH).map(str.encode))
def test_nothing_but_an_input_error_comes_of_rubbish(parse: Callable[[Text], Tree], source: bytes) -> None:
    with suppress(InputError):
        parse(Text("file", source))


def test_a_file_in_one_line_takes_seconds_at_most() -> None:
    start = time.process_time()
    read = of_json('{"x": [' + ", ".join(f'"é{index}"' for index in range(50_000)) + "]}")
    last = read.spans[("x", 49_999)].value
    assert (last.line, read.text.at(last)) == (1, '"é49999"')
    assert last.column == len(read.text.data.decode()) - len('"é49999"]}') + 1
    assert time.process_time() - start < 8


def test_a_mebibyte_takes_seconds_at_most() -> None:
    start = time.process_time()
    with pytest.raises(InputError):
        of_json("[" + "[1,2],\n" * 150_000 + "]")
    assert time.process_time() - start < 8


WORDS = st.text("abcxyz _é€:#", max_size=8)
OF_YAML = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=10,
)


def of_yaml(source: str) -> Tree:
    return parse_yaml(Text("job.yaml", source.encode()))


def said(read: Tree, *path: str | int) -> str:
    return read.text.at(read.spans[path].value)


@given(st.dictionaries(WORDS, OF_YAML, min_size=1, max_size=4), st.sampled_from([None, True, False]))
def test_the_data_are_those_that_were_written_and_a_span_is_its_value(value: Any, flow: bool | None) -> None:
    read = of_yaml(yaml.safe_dump(value, allow_unicode=True, default_flow_style=flow, width=10_000))
    assert read.data == value
    for path, span in read.spans.items():
        cut = read.text.at(span.value)
        if path and "\n" not in cut:
            assert yaml.safe_load(cut) == at(read, path)
        if span.key is not None:
            assert str(yaml.safe_load(read.text.at(span.key))) == path[-1]


@given(OF_YAML)
def test_json_is_yaml(value: Any) -> None:
    if value is None:
        return
    read = of_yaml(json.dumps(value))
    assert read.data == value
    assert all(json.loads(read.text.at(span.value)) == at(read, path) for path, span in read.spans.items())


def test_scalars_are_those_of_yaml_1_2() -> None:
    assert of_yaml("a: 1e-5\nb: no\nc: 0x10\nd: 1_000\ne: ~\nf: '8'\n").data == {
        "a": 1e-5,
        "b": "no",
        "c": 16,
        "d": "1_000",
        "e": None,
        "f": "8",
    }


def test_spans_leave_comments_and_blank_lines_out() -> None:
    head, tail = "# head\nmodel:   # the model\n  layers: 4   # four\n\n", "\n\n# tail\nlast: |\n  one\n  two\n\n"
    read = of_yaml(f"{head}  names: [a, 'b']{tail}")
    assert said(read, "model") == "layers: 4   # four\n\n  names: [a, 'b']"
    assert said(read, "model", "layers") == "4"
    assert said(read, "model", "names", 1) == "'b'"
    assert said(read, "last") == "|\n  one\n  two"
    assert said(read, "model", "names") == "[a, 'b']"


def test_an_alias_has_the_value_of_its_anchor_and_its_own_place() -> None:
    read = of_yaml("base: &b {tp: 8, more: [1]}\nrun: *b\n")
    assert read.data["run"] == {"tp": 8, "more": [1]}
    assert said(read, "run") == said(read, "run", "tp") == said(read, "run", "more", 0) == "*b"
    assert said(read, "base") == "&b {tp: 8, more: [1]}" or said(read, "base") == "{tp: 8, more: [1]}"


def test_a_merge_key_brings_what_is_not_said() -> None:
    read = of_yaml("a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc:\n  <<: [*a, *b]\n  x: 9\n")
    assert read.data["c"] == {"x": 9, "y": 2, "z": 4}
    assert (said(read, "c", "x"), said(read, "c", "y"), said(read, "c", "z")) == ("9", "*a", "*b")


def test_aliases_that_multiply_are_refused() -> None:
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 12)]
    with pytest.raises(InputError, match="aliases make too many values"):
        of_yaml("\n".join(lines))


@pytest.mark.parametrize("second", ["model: {tp: 2}", "- 1", "text", "''"])
def test_a_second_document_is_refused_unless_it_is_empty(second: str) -> None:
    with pytest.raises(InputError, match="holds more than one document"):
        of_yaml(f"kind: Service\n---\n{second}\n")
    for source in ("a: 1\n---\n", "---\n---\na: 1\n", "# x\n---\na: 1\n---\n# y\n---\n"):
        read = of_yaml(source)
        assert (read.data, said(read, "a"), said(read)) == ({"a": 1}, "1", "a: 1")


def test_of_a_key_that_stands_twice_the_last_counts_and_it_is_said() -> None:
    read = of_yaml("m:\n  a: 1\n  b: 2\n  a: 3\nz: 0\n")
    assert read.data["m"] == {"a": 3, "b": 2}
    assert (said(read, "m", "a"), said(read, "m")) == ("3", "a: 1\n  b: 2\n  a: 3")
    assert [(item.place.line, item.matters) for item in read.unread] == [(4, False)]
    merged = of_yaml("x: &x {a: 1}\ny: &y {b: 2}\nz:\n  <<: *x\n  <<: *y\n")
    assert (merged.data["z"], [item.what for item in merged.unread]) == ({"b": 2}, ["<<"])


@pytest.mark.parametrize("source", ["a: &a [*a]", "a: *nowhere"])
def test_an_alias_of_nothing_whole_is_refused(source: str) -> None:
    with pytest.raises(InputError, match=r"an alias stands inside|nothing before this"):
        of_yaml(source)


def test_a_tag_of_another_program_leaves_text_and_is_listed() -> None:
    read = of_yaml("a: !ENV ${HOME}/x\nb: !!str 8\nc: !!int '8'\nd: !!python/tuple [1, 2]\n")
    assert read.data == {"a": "${HOME}/x", "b": "8", "c": 8, "d": [1, 2]}
    assert [(item.place.line, item.what) for item in read.unread] == [(1, "!ENV")]


def test_windows_line_ends_a_mark_at_the_start_and_wide_characters_shift_nothing() -> None:
    read = parse_yaml(Text("x.yaml", "\ufeffa: é€\r\nb:\r\n  c: 12\r\n".encode()))
    assert read.data == {"a": "é€", "b": {"c": 12}}
    assert (said(read, "b", "c"), said(read, "a"), said(read, "b")) == ("12", "é€", "c: 12")


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        of_yaml("a: 1\nb: .inf\nc: .nan\n")
    assert [problem.line for problem in caught.value.problems] == [2, 3]
