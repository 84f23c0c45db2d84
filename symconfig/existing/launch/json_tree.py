"""JSON as DeepSpeed reads it (hjson: comments, a comma after the last), with the bytes of every key and value."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.document import MAX_DEPTH, MAX_PROBLEMS, KeyPath, dotted, shorten
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.reading import Span, Tree
from symconfig.existing.launch.text import Place, Text

MAX_VALUES = 200_000
_MAX_DIGITS = 100  # a longer number is a mistake, and CPython refuses int() of more than 4,300 digits
_TOKEN = re.compile(
    rb"""(?P<blank>[\ \t\r\n]+|//[^\n]*|\#[^\n]*|/\*.*?\*/)
       | (?P<string>"(?:[^"\\\n]|\\[^\n])*")
       | (?P<mark>[\[\]{},:])
       | (?P<bare>(?!/\*)[^\s\[\]{},:"#]+)""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_NOT_FINITE = frozenset(("nan", "inf", "infinity"))
_WORDS = {"true": True, "false": False, "null": None}
BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class _Open:
    """An object or array that is being filled. wants: what may come next in it."""

    path: KeyPath
    into: dict[str, Any] | list[Any]
    start: int
    wants: str  # "key", "colon", "value" or "comma"
    key: str = ""
    key_place: Place | None = None


def parse_json(text: Text) -> Tree:
    """Parse data and places. Numbers with a point or an exponent are floats. Raises InputError with every problem
    found.
    """
    return _Parser(text).tree()


class _Parser:
    """One pass over the tokens; what does not stop the reading is collected."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.spans: dict[KeyPath, Span] = {}
        self.stack: list[_Open] = []
        self.problems: list[Problem] = []
        self.data: Any = None
        self.done = False

    def tree(self) -> Tree:
        checked_utf8(self.text)
        data = self.text.data
        position = len(BOM) if data.startswith(BOM) else 0
        while position < len(data):
            match = _TOKEN.match(data, position)
            if match is None:
                what = "a string has no end on its line" if data[position : position + 1] == b'"' else "is no JSON"
                raise self.stop(what, position, position + 1)
            position = match.end()
            if match.lastgroup != "blank":
                self.token(str(match.lastgroup), match.start(), match.end())
            if len(self.problems) >= MAX_PROBLEMS or len(self.spans) > MAX_VALUES:
                raise self.stop("there is too much after this to go on", match.start(), match.end())
        if not self.done:
            raise self.stop(
                "the file ends in the middle, it is cut off" if self.spans else "the file is empty",
                len(data),
                len(data),
            )
        if self.problems:
            raise InputError(self.problems)
        return Tree(self.text, self.data, self.spans, "json")

    def token(self, kind: str, start: int, end: int) -> None:
        raw = self.text.data[start:end].decode()
        top = self.stack[-1] if self.stack else None
        wants = top.wants if top is not None else "nothing" if self.done else "value"
        if kind == "mark" and raw in "]}":
            self.close(raw, start, end)
        elif wants == "key":
            self.key(kind, raw, start, end)
        elif wants in ("colon", "comma"):
            assert top is not None
            self.between(top, raw, start, end)
        elif wants == "value":
            self.value(kind, raw, start, end)
        else:
            raise self.stop("something stands behind the end", start, end, got=shorten(raw))

    def between(self, top: _Open, raw: str, start: int, end: int) -> None:
        if top.wants == "colon":
            if raw != ":":
                raise self.stop("a colon is missing before this", start, end, got=shorten(raw))
            top.wants = "value"
        elif raw != ",":
            raise self.stop("a comma is missing before this", start, end, got=shorten(raw))
        else:
            top.wants = "key" if isinstance(top.into, dict) else "value"

    def key(self, kind: str, raw: str, start: int, end: int) -> None:
        top = self.stack[-1]
        if kind == "mark":
            raise self.stop("a key is missing", start, end, got=shorten(raw))
        if kind == "bare":
            self.report("a key has no quotes", start, end, got=shorten(raw), hint=f'"{shorten(raw)}"')
        top.key = self.string(raw, start, end) if kind == "string" else raw
        top.key_place = self.text.place(start, end)
        top.wants = "colon"
        first = self.spans.get((*top.path, top.key))
        if first is not None and first.key is not None:
            self.report(
                f"duplicate key, first on line {first.key.line}",
                start,
                end,
                path=(*top.path, top.key),
                hint="keep one of them; DeepSpeed refuses both",
            )

    def value(self, kind: str, raw: str, start: int, end: int) -> None:
        if kind == "mark":
            if raw not in "[{":
                raise self.stop("a value is missing", start, end, got=shorten(raw))
            if len(self.stack) >= MAX_DEPTH:
                raise self.stop("the file is nested too deeply", start, end, need=f"at most {MAX_DEPTH} levels")
            self.stack.append(_Open(self.path(), {} if raw == "{" else [], start, "key" if raw == "{" else "value"))
            return
        self.put(self.string(raw, start, end) if kind == "string" else self.bare(raw, start, end), start, end)

    def string(self, raw: str, start: int, end: int) -> str:
        try:
            value = str(json.loads(raw, strict=False))  # strict=False: tabs, as hjson has them
            value.encode()
        except ValueError:  # half a surrogate pair is one too
            self.report("a string has an escape that JSON does not know", start, end, got=shorten(raw))
            return raw[1:-1]
        return value

    def bare(self, raw: str, start: int, end: int) -> Any:
        if raw in _WORDS:
            return _WORDS[raw]
        match = _NUMBER.fullmatch(raw)
        if match and len(raw) <= _MAX_DIGITS:
            number = float(raw)
            if math.isfinite(number):
                return number if match[2] or match[3] else int(raw)
        finite = bool(match) or raw.lstrip("+-").lower() in _NOT_FINITE
        meant = raw.lower() if raw.lower() in _WORDS else f'"{shorten(raw)}"'
        self.report(
            "not a finite number of ordinary length" if finite else "a value that is no number has no quotes",
            start,
            end,
            got=shorten(raw),
            path=self.path(),
            hint=None if finite else meant,
        )
        return None

    def close(self, raw: str, start: int, end: int) -> None:
        top = self.stack[-1] if self.stack else None
        wanted = "" if top is None else "}" if isinstance(top.into, dict) else "]"
        if top is None or raw != wanted or top.wants == "colon" or (top.wants == "value" and wanted == "}"):
            what = f"a value is missing before '{raw}'" if raw == wanted else f"'{raw}' closes nothing that is open"
            raise self.stop(what, start, end, need=f"'{wanted}'" if wanted and raw != wanted else None)
        self.stack.pop()
        self.put(top.into, top.start, end)

    def path(self) -> KeyPath:
        """Return where the next value goes."""
        if not self.stack:
            return ()
        top = self.stack[-1]
        return (*top.path, len(top.into) if isinstance(top.into, list) else top.key)

    def put(self, value: Any, start: int, end: int) -> None:
        top = self.stack[-1] if self.stack else None
        self.spans[self.path()] = Span(top.key_place if top is not None else None, self.text.place(start, end))
        if top is None:
            self.data, self.done = value, True
        elif isinstance(top.into, list):
            top.into.append(value)
            top.wants = "comma"
        else:
            top.into[top.key] = value
            top.wants, top.key_place = "comma", None

    def report(self, what: str, start: int, end: int, *, path: KeyPath = (), **words: str | None) -> None:
        self.problems.append(self.text.place(start, end).problem(what, field=dotted(path) or None, **words))

    def stop(self, what: str, start: int, end: int, **words: Any) -> InputError:
        self.report(what, start, end, **words)
        return InputError(self.problems)


def checked_utf8(text: Text) -> str:
    """Return the file's characters. Raises InputError where they are none."""
    try:
        return text.data.decode()
    except UnicodeDecodeError as error:
        line = text.place(error.start, error.end).line
        raise InputError("the file is not UTF-8 text", file=text.file, line=line) from None
