"""Where a line, and a cell of a table, is broken."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

LONGEST_WORD = 40  # letters that are kept together in a table; a name's parts, where it is longer than the next
_LONG_NAME = 20
_ITEM = "  "  # as wide as the sign of an item
_PERCENT = "\1%"  # a sign that stays with its number
_SEAMS = r"(?<=\s)(?=\S)|(?<=[\w)]\+)(?=\w)"  # behind blanks, and behind the + of core_attn+mlp


def pieces(text: str, *, heads: bool = False) -> list[str]:
    """Return the parts of a cell between which it may be broken: after blanks, after "+" between words, and in
    headers after "/".
    """
    start = len(text) - len(text.lstrip())
    first, *others = re.split(_SEAMS + r"|(?<=/)(?=\w\w)" * heads, text[start:])
    return [text[:start] + first, *others]


def name_parts(word: str) -> list[str]:
    """Return the parts of a name longer than _LONG_NAME between which it may be broken (after "_" and "."); [word]
    for others.
    """
    long = len(word.rstrip()) > _LONG_NAME and "/" not in word
    return re.split(r"(?<=[a-zA-Z][_.])(?=[a-zA-Z])", word) if long else [word]


def wrap(line: str, width: int) -> list[str]:
    """Return a line as lines of at most `width`; a longer word stays whole.

    A command, or options alone, is broken before options with a trailing backslash.
    """
    if len(line) <= width:
        return [line]
    text = line.lstrip()
    indent = line[: len(line) - len(text)]
    if text.startswith(("--", "symconfig ")):
        return _command(line, indent, width)
    lines = textwrap.wrap(
        line.replace(" %", _PERCENT),
        width,
        subsequent_indent=indent + _ITEM * text.startswith("- "),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [each.replace(_PERCENT, " %") for each in lines]


def _command(line: str, indent: str, width: int) -> list[str]:
    """Return a command as lines with trailing backslashes, broken only before options."""
    lines: list[str] = []
    for part in _options(line.strip()):
        if lines and len(lines[-1]) + 1 + len(part) + len(" \\") <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(indent + ("  " if lines else "") + part)
    return [f"{each} \\" for each in lines[:-1]] + lines[-1:]


def _options(command: str) -> Iterator[str]:
    """Yield the words of a command, each option together with its value; quoted text is one word."""
    words = re.findall(r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|\\.|[^\s"'])+|\S""", command)
    part: list[str] = []
    for word in words:
        if part and (word.startswith("-") or not part[0].startswith("-") or len(part) > 1):
            yield " ".join(part)
            part = []
        part.append(word)
    yield " ".join(part)
