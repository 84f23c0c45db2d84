"""JSON as DeepSpeed reads it (hjson: comments, a comma after the last), with the bytes of every key and value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from symconfig.descriptor.document import KeyPath
from symconfig.descriptor.json_strict import TOKEN, parse_json_strict
from symconfig.existing.launch.reading import Span, Tree
from symconfig.existing.launch.text import Place, Text

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|#[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[\]}}])")


def parse_json(text: Text) -> Tree:
    """Return the data of a JSON file with comments and trailing commas, with the place of each key and value.

    Numbers with a point or an exponent are floats. Raises InputError with every problem found.
    """
    plain = text.characters().replace("\ufeff", " ", 1)
    for aside in (_COMMENT, _LAST_COMMA):
        plain = aside.sub(lambda match: match[0] if match[0][0] == '"' else re.sub(r"[^\n]", " ", match[0]), plain)
    data = parse_json_strict(plain, text.file).data
    return Tree(text, data, _spans(plain, text.between), "json")


def _spans(plain: str, place: Callable[[int, int], Place]) -> dict[KeyPath, Span]:
    """Return the places of keys and values of valid JSON by path.

    place: returns the place of characters [start, end).
    """
    spans: dict[KeyPath, Span] = {}
    opened: list[tuple[KeyPath, Place | None, int]] = []  # path, key and start of what is not closed yet
    path: list[str | int | None] = []  # of the next value; it ends in None before a key
    key: Place | None = None
    for match in TOKEN.finditer(plain):
        token, start, end = match[0], match.start(), match.end()
        if token in "]}":
            path.pop()
            where, named, first = opened.pop()
            spans[where] = Span(named, place(first, end))
        elif token == ",":
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else None
        elif path and path[-1] is None:
            path[-1], key = json.loads(token), place(start, end)
        elif token != ":":
            where = tuple(each for each in path if each is not None)
            if token in "[{":
                opened.append((where, key, start))
                path.append(0 if token == "[" else None)
            else:
                spans[where] = Span(key, place(start, end))
            key = None
    return spans
