"""The escapes of `$'...'`, `echo -e` and `printf`."""

from __future__ import annotations

import re

_SIMPLE = {
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "?": "?",
}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|c.|.)", re.DOTALL)


def unescaped(text: str) -> str:
    """The text with its escapes done."""
    return _ESCAPE.sub(_one, text)


def _one(match: re.Match[str]) -> str:
    body = match.group(1)
    if body in _SIMPLE:
        return _SIMPLE[body]
    if body[0] in "xuU" and len(body) > 1:
        number = int(body[1:], 16)
        return chr(number) if number < 0x110000 else "\ufffd"
    if body[0] in "01234567":
        return chr(int(body, 8) & 0xFF)
    if body[0] == "c" and len(body) == 2:
        return chr(ord(body[1]) & 0x1F)
    return match.group(0)
