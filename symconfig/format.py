"""Numbers and names as a person reads them in tables."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from symconfig.masks import masked
from symconfig.units import GIB, MIB


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


def json_text(data: object) -> str:
    """Write data as JSON whose text shows as it is read: control and bidi characters are escaped, other scripts not."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    return "".join(c if c.isprintable() or c == "\n" or lone(c) else json.dumps(c)[1:-1] for c in text) + "\n"


def lone(char: str) -> bool:
    """Tell whether this is half of a pair, which no file in UTF-8 can hold: whoever writes one has to refuse it."""
    return "\ud800" <= char <= "\udfff"


def clean(text: str) -> str:
    """Text from a file or a command line, without secrets, and with control characters escaped: a terminal must not
    obey them."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in masked(text)
    )


def general(name: str) -> str:
    """`layers.*.up_proj` of `layers.3.up_proj`."""
    return re.sub(r"(?<![^._])\d+(?![^._])", "*", name)
