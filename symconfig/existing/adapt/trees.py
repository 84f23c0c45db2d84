"""Edits of JSON and YAML: another value, a key more, a key less; comments, order and indentation stay.

Each function yields ways to do it, the most natural first; which of them are right only reading again can tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from symconfig.descriptor.document import KeyPath
from symconfig.existing.launch.reading import Span, Tree
from symconfig.existing.launch.text import Edit, Place

_BLANK = re.compile(rb"(?:[ \t\r\n]|//[^\n]*|#[^\n]*|/\*.*?\*/)*", re.DOTALL)
_COMMENT = re.compile(rb"[ \t]*(?://|#|/\*)[^\n]*")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_NOT_TEXT = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))


def changed(tree: Tree, path: KeyPath, value: Any) -> Iterator[tuple[Edit, ...]]:
    """Yield alternative edits that replace a key's value: a text of YAML in the old quotes, then as `spelled`."""
    place = tree.spans[path].value
    if tree.syntax == "yaml" and isinstance(value, str) and tree.text.at(place)[:1] in ("'", '"'):
        quote = tree.text.at(place)[0]
        if quote not in value and "\\" not in value:
            yield (Edit(place, f"{quote}{value}{quote}"),)
    yield (Edit(place, spelled(value, tree.syntax)),)


def spelled(value: Any, syntax: str) -> str:
    """Return a value on one line of "json" or "yaml", which YAML 1.1 and 1.2 read alike."""
    if syntax == "json" or isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "e" in (text := repr(value)) and "." not in text:
        return text.replace("e", ".0e")  # without a point PyYAML reads a text
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    return json.dumps(value, ensure_ascii=False)


def inserted(tree: Tree, parent: KeyPath, key: str, value: Any, after: str | None = None) -> Iterator[tuple[Edit, ...]]:
    """Yield the group of edits that inserts a new key into the object at `parent`, behind `after` or the last.

    It gets a line of its own, equally indented, if its neighbour has one. Nothing is yielded for an empty block.
    """
    data = tree.text.data
    siblings = _children(tree, parent)
    whole = tree.spans[parent].value
    if not siblings:
        if tree.text.at(whole)[:1] == "{":
            yield (Edit(tree.text.place(whole.start + 1, whole.start + 1), _entry(tree, key, value, quoted=True)),)
        return
    span = siblings[after] if after in siblings else list(siblings.values())[-1]
    first = _first(span)
    before = data[_line_start(data, first.start) : first.start]
    alone = (not before.strip() and before != b"") or _line_start(data, first.start) == first.start
    flow = tree.syntax == "json" or data[whole.start : whole.start + 1] == b"{"
    entry = _entry(tree, key, value, quoted=tree.text.at(first)[:1] == '"')
    new_line = _newline(data) + before.decode("utf-8", "replace") if alone else " "
    if not flow:
        end = _content_end(data, span.value)
        end = _line_end(data, end)
        lines = new_line.join(_lines(key, value)) if alone else entry
        yield (Edit(tree.text.place(end, end), f"{new_line}{lines}"),)
        return
    comma = _comma(data, span.value.end)
    at, lead, tail = (span.value.end, ",", "") if comma is None else (comma + 1, "", ",")
    end = _line_end(data, at) if alone and _quiet(data, at) else at
    entry = f"{new_line}{entry}{tail}"
    if end == at or not lead:
        yield (Edit(tree.text.place(end, end), f"{lead}{entry}"),)
    else:
        yield Edit(tree.text.place(at, at), lead), Edit(tree.text.place(end, end), entry)


def removed(tree: Tree, path: KeyPath) -> Iterator[tuple[Edit, ...]]:
    """Yield the one group of edits that removes a key with its comma (the one before, if it is the last key).

    Its lines are removed whole if nothing else is on them.
    """
    data, span = tree.text.data, tree.spans[path]
    first = _first(span)
    start, end = first.start, _content_end(data, span.value)
    parent = tree.spans[path[:-1]].value
    flow = tree.syntax == "json" or data[parent.start : parent.start + 1] == b"{"
    comma = _comma(data, end) if flow else None
    stop = end if comma is None else comma + 1
    begins = _line_start(data, start)
    alone = not data[begins:start].strip() and not data[stop : _line_end(data, stop)].strip()
    edits: list[Edit] = []
    before = [each for each in _children(tree, path[:-1]).values() if each.value.start < span.value.start]
    previous = before[-1] if before and flow and comma is None else None
    if previous is not None and (at := _comma(data, previous.value.end)) is not None:
        edits.append(Edit(tree.text.place(at, at + 1), ""))
    if alone:
        last = min(_line_end(data, stop) + len(_newline(data)), len(data))
        yield (*edits, Edit(tree.text.place(begins, last), ""))
    elif previous is not None:
        at = _comma(data, previous.value.end) or start
        yield (Edit(tree.text.place(at, stop), ""),)
    else:
        rest = data[stop : _line_end(data, stop)]
        yield (*edits, Edit(tree.text.place(start, stop + len(rest) - len(rest.lstrip())), ""))


def path_at(tree: Tree, place: Place) -> KeyPath | None:
    """Return the longest path whose key or value covers the place's start; None if there is none."""
    paths = [
        path
        for path, span in tree.spans.items()
        if span.value.start <= place.start < span.value.end
        or (span.key is not None and span.key.start <= place.start < span.key.end)
    ]
    return max(paths, key=len, default=None)


def _children(tree: Tree, parent: KeyPath) -> dict[str, Span]:
    children = {
        str(path[-1]): span for path, span in tree.spans.items() if len(path) == len(parent) + 1 and path[:-1] == parent
    }
    return dict(sorted(children.items(), key=lambda item: item[1].value.start))


def _first(span: Span) -> Place:
    return span.value if span.key is None else span.key


def _entry(tree: Tree, key: str, value: Any, quoted: bool) -> str:
    name = json.dumps(key) if tree.syntax == "json" or quoted else key
    return f"{name}: {spelled(value, tree.syntax)}"


def _lines(key: str, value: Any) -> Iterator[str]:
    """Yield the lines of a key in YAML's block style, objects indented by two spaces."""
    if not isinstance(value, dict):
        yield f"{key}: {spelled(value, 'yaml')}"
        return
    yield f"{key}:"
    for inner, each in value.items():
        yield from (f"  {line}" for line in _lines(inner, each))


def _comma(data: bytes, start: int) -> int | None:
    """Return the offset of the comma after a value, past blanks and comments; None if there is no comma."""
    blank = _BLANK.match(data, start)
    at = blank.end() if blank else start
    return at if data[at : at + 1] == b"," else None


def _quiet(data: bytes, start: int) -> bool:
    """Return whether only blanks or a comment follow on the line."""
    rest = data[start : _line_end(data, start)]
    return not rest.strip() or _COMMENT.fullmatch(rest.rstrip()) is not None


def _content_end(data: bytes, place: Place) -> int:
    """Return the offset of a value's end without trailing blanks, which a YAML block may include."""
    return place.start + len(data[place.start : place.end].rstrip())


def _line_start(data: bytes, at: int) -> int:
    return data.rfind(b"\n", 0, at) + 1


def _line_end(data: bytes, at: int) -> int:
    """Return the offset of the line's end, before LF or CRLF."""
    end = data.find(b"\n", at)
    end = len(data) if end < 0 else end
    return end - 1 if end > at and data[end - 1 : end] == b"\r" else end


def _newline(data: bytes) -> str:
    return "\r\n" if b"\r\n" in data else "\n"
