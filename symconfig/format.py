"""Numbers and names as a person reads them in tables."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from symconfig.units import GIB, MIB

LONGEST_WORD = 40  # letters that are kept together in a table; a name's parts, where it is longer than the next
_LONG_NAME = 20
_ITEM = "  "  # as wide as the sign of an item
_PERCENT = "\1%"  # a sign that stays with its number
_SEAMS = r"(?<=\s)(?=\S)|(?<=[\w)]\+)(?=\w)"  # behind blanks, and behind the + of core_attn+mlp


def gib(value_bytes: float) -> str:
    """Bytes as GiB with two decimals."""
    return f"{value_bytes / GIB:.2f}"


def mib(value_bytes: float) -> str:
    """Bytes as MiB with one decimal."""
    return f"{value_bytes / MIB:.1f}"


def seconds(value_s: float) -> str:
    """Seconds with three decimals, fewer from a thousand on."""
    return f"{value_s:.3f}" if abs(value_s) < 999.5 else f"{value_s:.1f}"


def milliseconds(value_s: float) -> str:
    """Seconds as milliseconds with three decimals."""
    return f"{1e3 * value_s:.3f}"


def percent(share: float) -> str:
    """A share of one as percent."""
    return f"{100 * share:.1f} %"


def count(value: float) -> str:
    """A whole number with its thousands apart."""
    return f"{value:,.0f}"


def things(number: float, noun: str) -> str:
    """`1 node`, `2 nodes`"""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def several(number: int, noun: str) -> str:
    """`1 plan`, `1,000 plans`: for nouns that only take an s."""
    return f"{count(number)} {noun}{'s' * (number != 1)}"


def words(key: str) -> str:
    """A key of `predicted.memory` or `predicted.time` as words."""
    return key.replace("_", " ")


def either(numbers: Sequence[int]) -> str:
    """`1, 3 or 9`"""
    every = [f"{number:,}" for number in numbers]
    return " or ".join([part for part in (", ".join(every[:-1]), *every[-1:]) if part])


def clean(text: str) -> str:
    """Text from a file or a command line, with control characters escaped: a terminal must not obey them."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


def general(name: str) -> str:
    """`layers.*.up_proj` of `layers.3.up_proj`."""
    return re.sub(r"(?<![^._])\d+(?![^._])", "*", name)


def whole(text: str, *, heads: bool = False) -> list[str]:
    """Return the parts between which a cell of a table is broken, blanks at their ends; of a header also behind /."""
    start = len(text) - len(text.lstrip())
    first, *others = re.split(_SEAMS + r"|(?<=/)(?=\w\w)" * heads, text[start:])
    return [text[:start] + first, *others]


def parts(word: str) -> list[str]:
    """Return the parts of a long name, between which it is broken where it fits no line."""
    long = len(word.rstrip()) > _LONG_NAME and "/" not in word
    return re.split(r"(?<=[a-zA-Z][_.])(?=[a-zA-Z])", word) if long else [word]


def wrap(line: str, width: int) -> list[str]:
    """Return one line as several that are no longer than `width`; a word that is longer stays whole.

    A command, or its options alone, is broken as a shell reads it on: with a backslash, before an option.
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
    lines: list[str] = []
    for part in _options(line.strip()):
        if lines and len(lines[-1]) + 1 + len(part) + len(" \\") <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(indent + ("  " if lines else "") + part)
    return [f"{each} \\" for each in lines[:-1]] + lines[-1:]


def _options(command: str) -> Iterator[str]:
    """Yield the words of a command, an option with its value as one; what is quoted is one word."""
    words = re.findall(r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|\\.|[^\s"'])+|\S""", command)
    part: list[str] = []
    for word in words:
        if part and (word.startswith("-") or not part[0].startswith("-") or len(part) > 1):
            yield " ".join(part)
            part = []
        part.append(word)
    yield " ".join(part)
