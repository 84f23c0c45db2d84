"""YAML of other programs with the bytes of its parts."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.errors import InputError
from symconfig.existing.launch.reading import Tree
from symconfig.existing.launch.text import Text
from symconfig.existing.launch.trees import parse_yaml

WORDS = st.text("abcxyz _é€:#", max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=10,
)


def tree(source: str) -> Tree:
    return parse_yaml(Text("job.yaml", source.encode()))


def said(read: Tree, *path: str | int) -> str:
    return read.text.at(read.spans[path].value)


def at(read: Tree, path: tuple[str | int, ...]) -> Any:
    found = read.data
    for key in path:
        found = found[key]
    return found


@settings(deadline=None)
@given(st.dictionaries(WORDS, VALUES, min_size=1, max_size=4), st.sampled_from([None, True, False]))
def test_the_data_are_those_that_were_written_and_a_span_is_its_value(value: Any, flow: bool | None) -> None:
    read = tree(yaml.safe_dump(value, allow_unicode=True, default_flow_style=flow, width=10_000))
    assert read.data == value
    for path, span in read.spans.items():
        cut = read.text.at(span.value)
        if path and "\n" not in cut:
            assert yaml.safe_load(cut) == at(read, path)
        if span.key is not None:
            assert str(yaml.safe_load(read.text.at(span.key))) == path[-1]


@settings(deadline=None)
@given(VALUES)
def test_json_is_yaml(value: Any) -> None:
    if value is None:
        return
    read = tree(json.dumps(value))
    assert read.data == value
    assert all(json.loads(read.text.at(span.value)) == at(read, path) for path, span in read.spans.items())


def test_scalars_are_those_of_yaml_1_2() -> None:
    assert tree("a: 1e-5\nb: no\nc: 0x10\nd: 1_000\ne: ~\nf: '8'\n").data == {
        "a": 1e-5,
        "b": "no",
        "c": 16,
        "d": "1_000",
        "e": None,
        "f": "8",
    }


def test_spans_leave_comments_and_blank_lines_out() -> None:
    head, tail = "# head\nmodel:   # the model\n  layers: 4   # four\n\n", "\n\n# tail\nlast: |\n  one\n  two\n\n"
    read = tree(f"{head}  names: [a, 'b']{tail}")
    assert said(read, "model") == "layers: 4   # four\n\n  names: [a, 'b']"
    assert said(read, "model", "layers") == "4"
    assert said(read, "model", "names", 1) == "'b'"
    assert said(read, "last") == "|\n  one\n  two"
    assert said(read, "model", "names") == "[a, 'b']"


def test_an_alias_has_the_value_of_its_anchor_and_its_own_place() -> None:
    read = tree("base: &b {tp: 8, more: [1]}\nrun: *b\n")
    assert read.data["run"] == {"tp": 8, "more": [1]}
    assert said(read, "run") == said(read, "run", "tp") == said(read, "run", "more", 0) == "*b"
    assert said(read, "base") == "&b {tp: 8, more: [1]}" or said(read, "base") == "{tp: 8, more: [1]}"


def test_a_merge_key_brings_what_is_not_said() -> None:
    read = tree("a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc:\n  <<: [*a, *b]\n  x: 9\n")
    assert read.data["c"] == {"x": 9, "y": 2, "z": 4}
    assert (said(read, "c", "x"), said(read, "c", "y"), said(read, "c", "z")) == ("9", "*a", "*b")


def test_aliases_that_multiply_are_refused() -> None:
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 12)]
    with pytest.raises(InputError, match="aliases make too many values"):
        tree("\n".join(lines))


@pytest.mark.parametrize("source", ["a: &a [*a]", "a: *nowhere"])
def test_an_alias_of_nothing_whole_is_refused(source: str) -> None:
    with pytest.raises(InputError, match=r"an alias stands inside|nothing before this"):
        tree(source)


def test_a_tag_of_another_program_leaves_text_and_is_listed() -> None:
    read = tree("a: !ENV ${HOME}/x\nb: !!str 8\nc: !!int '8'\nd: !!python/tuple [1, 2]\n")
    assert read.data == {"a": "${HOME}/x", "b": "8", "c": 8, "d": [1, 2]}
    assert [(item.place.line, item.what) for item in read.unread] == [(1, "!ENV")]


def test_of_several_documents_the_wanted_one_is_read() -> None:
    text = Text("k8s.yaml", b"kind: Service\n---\nmodel: {tp: 2}\n---\n---\nother: 1\n")
    read = parse_yaml(text, lambda data: "model" in data)
    assert read.data == {"model": {"tp": 2}}
    assert read.text.at(read.spans[("model", "tp")].value) == "2"
    assert [item.place.line for item in read.unread] == [1, 6]
    assert not any(item.matters for item in read.unread)


def test_of_a_key_that_stands_twice_the_last_counts_and_it_is_said() -> None:
    read = tree("m:\n  a: 1\n  b: 2\n  a: 3\nz: 0\n")
    assert read.data["m"] == {"a": 3, "b": 2}
    assert (said(read, "m", "a"), said(read, "m")) == ("3", "a: 1\n  b: 2\n  a: 3")
    assert [(item.place.line, item.matters) for item in read.unread] == [(4, False)]


def test_windows_line_ends_a_mark_at_the_start_and_wide_characters_shift_nothing() -> None:
    read = parse_yaml(Text("x.yaml", "\ufeffa: é€\r\nb:\r\n  c: 12\r\n".encode()))
    assert read.data == {"a": "é€", "b": {"c": 12}}
    assert (said(read, "b", "c"), said(read, "a"), said(read, "b")) == ("12", "é€", "c: 12")


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        tree("a: 1\nb: .inf\nc: .nan\n")
    assert [problem.line for problem in caught.value.problems] == [2, 3]


@settings(deadline=None)
@given(st.text("ab:-&*!<>|{}[],'\"#? \n\t€", max_size=40))
def test_nothing_but_an_input_error_comes_of_rubbish(source: str) -> None:
    with suppress(InputError):
        tree(source)
