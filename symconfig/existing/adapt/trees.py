"""Edits of JSON: another value, a key more, a key less; comments, order and indentation stay.

Each function returns the edits; whether they are right only reading again can tell.
"""

from __future__ import annotations

import json
import re
from typing import Any

from symconfig.descriptor.document import KeyPath
from symconfig.existing.launch.reading import Span, Tree
from symconfig.existing.launch.text import Edit

_BLANK = re.compile(rb"(?:[ \t\r\n]|//[^\n]*|#[^\n]*|/\*.*?\*/)*", re.DOTALL)
_COMMENT = re.compile(rb"[ \t]*(?://|#|/\*)[^\n]*")
Edits = tuple[Edit, ...]


def spelled(value: Any) -> str:
    """Return a value on one line of JSON."""
    return json.dumps(value, ensure_ascii=False)


def changed(tree: Tree, path: KeyPath, value: Any) -> Edits:
    """Return the edit that replaces a key's value."""
    return (Edit(tree.spans[path].value, spelled(value)),)


def inserted(tree: Tree, parent: KeyPath, key: str, value: Any) -> Edits:
    """Return the edits that insert a new key into the object at `parent`, behind the last.

    It gets a line of its own, equally indented, if its neighbour has one.
    """
    data, siblings = tree.text.data, _children(tree, parent)
    entry = f"{json.dumps(key)}: {spelled(value)}"
    if not siblings:
        at = tree.spans[parent].value.start + 1
        return (Edit(tree.text.place(at, at), entry),)
    span = siblings[-1]
    first = span.key or span.value
    before = data[_line_start(data, first.start) : first.start]
    alone = not before.strip()
    entry = f"{_newline(data) + before.decode('utf-8', 'replace') if alone else ' '}{entry}"
    comma = _comma(data, span.value.end)
    at = span.value.end if comma is None else comma + 1
    end = _line_end(data, at) if alone else at
    rest = data[at:end]  # an entry goes behind a comment, but before anything else on the line
    end = end if not rest.strip() or _COMMENT.fullmatch(rest.rstrip()) else at
    if comma is not None:
        return (Edit(tree.text.place(end, end), f"{entry},"),)
    if end == at:
        return (Edit(tree.text.place(end, end), f",{entry}"),)
    return Edit(tree.text.place(at, at), ","), Edit(tree.text.place(end, end), entry)


def removed(tree: Tree, path: KeyPath) -> Edits:
    """Return the edits that remove a key with its comma (the one before, if it is the last key).

    Its lines are removed whole if nothing else is on them.
    """
    data, span = tree.text.data, tree.spans[path]
    start, end = (span.key or span.value).start, span.value.end
    comma = _comma(data, end)
    stop = end if comma is None else comma + 1
    before = [each for each in _children(tree, path[:-1]) if each.value.start < span.value.start]
    joint = _comma(data, before[-1].value.end) if before and comma is None else None
    begins, ends = _line_start(data, start), _line_end(data, stop)
    if not data[begins:start].strip() and not data[stop:ends].strip():
        last = min(ends + len(_newline(data)), len(data))
        lines = Edit(tree.text.place(begins, last), "")
        return (lines,) if joint is None else (Edit(tree.text.place(joint, joint + 1), ""), lines)
    if joint is not None:
        return (Edit(tree.text.place(joint, stop), ""),)
    rest = data[stop:ends]
    return (Edit(tree.text.place(start, stop + len(rest) - len(rest.lstrip())), ""),)


def _children(tree: Tree, parent: KeyPath) -> list[Span]:
    """Return the places of an object's keys and values, in order."""
    children = (span for path, span in tree.spans.items() if path and path[:-1] == parent)
    return sorted(children, key=lambda span: span.value.start)


def _comma(data: bytes, start: int) -> int | None:
    """Return the offset of the comma after a value, past blanks and comments; None if there is no comma."""
    blank = _BLANK.match(data, start)
    at = blank.end() if blank else start
    return at if data[at : at + 1] == b"," else None


def _line_start(data: bytes, at: int) -> int:
    return data.rfind(b"\n", 0, at) + 1


def _line_end(data: bytes, at: int) -> int:
    """Return the offset of the line's end, before LF or CRLF."""
    end = data.find(b"\n", at)
    end = len(data) if end < 0 else end
    return end - 1 if end > at and data[end - 1 : end] == b"\r" else end


def _newline(data: bytes) -> str:
    return "\r\n" if b"\r\n" in data else "\n"
