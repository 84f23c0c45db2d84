"""Plain JSON: no NaN, no duplicate keys, bounded in size and depth, with the place of every key."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

from symconfig.descriptor.document import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_PROBLEMS,
    Document,
    KeyPath,
    Place,
    ProblemParts,
    read_text,
    shorten,
)
from symconfig.errors import InputError, Problem

TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
_MAX_VALUES = 200_000
_INFINITE = ("Infinity", "-Infinity")
_TOO_DEEP = "the file is nested too deeply"


def load_json_strict(path: Path, *, infinite: bool = False) -> Document:
    """Load a JSON file to data with the place of each key and value. Raises InputError with all problems.

    infinite: allows Infinity and -Infinity.
    """
    return parse_json_strict(read_text(path, MAX_BYTES), str(path), infinite=infinite)


def parse_json_strict(text: str, file: str, *, infinite: bool = False) -> Document:
    """Parse JSON text to data with the place of each key and value.

    infinite: allows Infinity and -Infinity, which become floats. Raises InputError for invalid JSON, NaN, duplicate
    keys, numbers that overflow, half a surrogate pair, more than 200,000 commas and more than MAX_DEPTH levels; at most
    MAX_PROBLEMS problems.
    """
    if text.count(",") > _MAX_VALUES:
        raise InputError("the file holds too many values", file=file, need=f"<= {_MAX_VALUES:,}")
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(_syntax(text, file, error)) from None
    except RecursionError:
        raise InputError(_TOO_DEEP, file=file, need=f"at most {MAX_DEPTH} levels") from None
    except ValueError as error:  # an integer of more than 4,300 digits
        raise InputError(f"this is not JSON that can be read: {shorten(str(error))}", file=file) from None
    keys, values, problems = _places(text, file, _INFINITE if infinite else ())
    if problems:
        raise InputError(problems[:MAX_PROBLEMS])
    try:
        json.dumps(data if "\\u" in text else None, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError("a string holds half a surrogate pair, which is no character", file=file) from None
    return Document(data, file, keys, values)


def _syntax(text: str, file: str, error: json.JSONDecodeError) -> Problem:
    """Return the Problem of text that is not JSON, at the parser's place: the file is cut off, or the parser's message.

    It is cut off if the parser failed at its end or in an open string. Blank text gives "the file is empty", without a
    place.
    """
    end = len(text.rstrip())
    if end == 0:
        return Problem("the file is empty", file=file)
    cut = error.pos >= end or "Unterminated" in error.msg
    what = "the file ends in the middle, it is cut off" if cut else f"this is not JSON: {error.msg}"
    return Problem(what, file=file, line=error.lineno, column=error.colno)


def _tokens(text: str) -> Iterator[tuple[str, Place]]:
    """Yield each JSON token of the text (strings with their quotes) with its line and column, counted from 1."""
    line, start = 1, 0
    last = 0
    for match in TOKEN.finditer(text):
        newlines = text.count("\n", last, match.start())
        if newlines:
            line += newlines
            start = text.rfind("\n", last, match.start()) + 1
        last = match.start()
        yield match.group(), Place(line, match.start() - start + 1)


def _places(
    text: str, file: str, allowed: tuple[str, ...]
) -> tuple[dict[KeyPath, Place], dict[KeyPath, Place], list[Problem]]:
    """Return the places of keys, the places of values, and the problems of valid JSON text, by path.

    Problems are duplicate keys (the first key's place is kept, and the last value's) and numbers that are not finite as
    floats, except the words in `allowed`. Raises InputError beyond MAX_DEPTH levels.
    """
    keys: dict[KeyPath, Place] = {}
    values: dict[KeyPath, Place] = {}
    problems: list[Problem] = []
    stack: list[tuple[bool, Any]] = []  # (is an object, the key or index being read; None: a key comes next)

    def path() -> KeyPath:
        return tuple(key for _, key in stack)

    def report(what: str, place: Place, **parts: Unpack[ProblemParts]) -> None:
        problems.append(Document(None, file, {}, {path(): place}).problem(what, path(), **parts))

    for token, place in _tokens(text):
        if token in "]}":
            stack.pop()
        elif token == ",":
            is_object, key = stack[-1]
            stack[-1] = (is_object, None if is_object else key + 1)
        elif token == ":":
            continue
        elif stack and stack[-1] == (True, None):
            stack[-1] = (True, json.loads(token))
            if path() in keys:
                report(f"duplicate key, first on line {keys[path()].line}", place)
            keys.setdefault(path(), place)
        else:
            values[path()] = place
            if token in "[{":
                if len(stack) == MAX_DEPTH:
                    need = f"at most {MAX_DEPTH} levels"
                    raise InputError(_TOO_DEEP, file=file, line=place.line, column=place.column, need=need)
                stack.append((token == "{", None if token == "{" else 0))
            elif token[0] in "-+.0123456789NI" and token not in allowed and not math.isfinite(float(token)):
                report("not a finite number", place, got=shorten(token))
    return keys, values, problems
