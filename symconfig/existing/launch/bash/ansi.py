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
# Bytes in a row are one piece of UTF-8.
_ESCAPE = re.compile(
    r"\\((?:x[0-9a-fA-F]{1,2}|[0-7]{1,3})(?:\\(?:x[0-9a-fA-F]{1,2}|[0-7]{1,3}))*"
    r"|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|c.|.)",
    re.DOTALL,
)


def unescaped(text: str) -> str:
    """Resolve the text's escapes."""
    return _ESCAPE.sub(_one, text)


def _one(match: re.Match[str]) -> str:
    body = match.group(1)
    if body in _SIMPLE:
        return _SIMPLE[body]
    if body[0] in "uU" and len(body) > 1:
        number = int(body[1:], 16)
        return chr(number) if number < 0x110000 else "\ufffd"
    if body[0] in "01234567" or (body[0] == "x" and len(body) > 1):
        return _decoded(body.split("\\"))
    if body[0] == "c" and len(body) == 2:
        return chr(ord(body[1]) & 0x1F)
    return match.group(0)


def _decoded(escapes: list[str]) -> str:
    """Read bytes as UTF-8; bytes that are none, each as the character of its number."""
    raw = bytes(int(one[1:], 16) if one[0] == "x" else int(one, 8) & 0xFF for one in escapes)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
