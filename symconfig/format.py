"""Numbers and names as a person reads them in tables, and what no output shows of them.

Tokens, passwords and keys in people's files are masked: what reads such a file has it `learned`, what writes an answer
has its text `masked`. A value is a secret by the name that it is given (HF_TOKEN, wandb.api_key, --password), or by its
own shape, which issuers of tokens chose for scanners.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from symconfig.units import GIB, MIB

SHOWN = "***"
Key = TypeVar("Key")
Value = TypeVar("Value")
_NAMED = re.compile(
    r"""
    (?P<name> (?<!\w)[\w.-]*?(?:token|secret|passw(?:or)?d|passphrase|credentials?|(?:api|access|secret|private)[_-]?key
      (?:[_-]?id)?))
    ["']? (?:\s*[=:]\s*|\s+) ["']?
    (?P<value> [^\s"'$`\\;|&<>(){}\[\],]{6,})
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Values that are words of a setting or numbers, and no secrets whatever they are called.
_WORDS = re.compile(
    r"[\d.,e+-]+|default|offline|online|disabled|enabled|required|optional|string|public", re.IGNORECASE
)
_PLAIN = re.compile(r"(?:bos|eos|pad|unk|mask|sep|cls|image|video|special|next|per)[_-]tokens?\Z", re.IGNORECASE)
_SHAPES = re.compile(
    r"(?<![\w-])(?:hf_[A-Za-z0-9]{20,}|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|nvapi-[\w-]{20,}"
    r"|sk-[\w-]{20,}|xox[abeprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{35}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
)
_learned: set[str] = set()


def gib(value_bytes: float) -> str:
    """Format bytes as GiB with two decimals."""
    return f"{value_bytes / GIB:.2f}"


def mib(value_bytes: float) -> str:
    """Format bytes as MiB with one decimal."""
    return f"{value_bytes / MIB:.1f}"


def rounded(value: float, digits: int = 3) -> str:
    """Format a number with 3 or 4 significant digits; larger numbers have all digits before the point, with commas.
    There is no exponent above 0.0001.
    """
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) - 0.05 else f"{value:.{digits}g}"


def gb_per_s(rate_bytes_per_s: float) -> str:
    """Format a bandwidth in GB/s (10^9) with three significant digits, four from 100 on, no decimals from 1,000 on."""
    rate = rate_bytes_per_s / 1e9
    return rounded(rate, 4 if rate >= 100 else 3)


def seconds(value_s: float) -> str:
    """Format seconds with three decimals, one from a thousand on."""
    return f"{value_s:.3f}" if abs(value_s) < 999.5 else f"{value_s:.1f}"


def duration(value_s: float) -> str:
    """Format seconds with their unit: two decimals, or below one second milliseconds with one decimal."""
    return f"{value_s:.2f} s" if value_s >= 0.99995 else f"{1e3 * value_s:.1f} ms"


def milliseconds(value_s: float) -> str:
    """Format seconds as milliseconds with three decimals."""
    return f"{1e3 * value_s:.3f}"


def percent(share: float, digits: int = 1) -> str:
    """Format a share of one as percent."""
    return f"{100 * share:.{digits}f} %"


def signed(share: float, digits: int = 1) -> str:
    """Format a difference, a share of one, as percent with its sign."""
    return f"{100 * share:+.{digits}f} %"


def count(value: float) -> str:
    """Format a whole number with commas between thousands."""
    return f"{value:,.0f}"


def several(number: float, noun: str) -> str:
    """Format a number and a noun that only takes an s: `1 plan`, `1,000 plans`."""
    return f"{count(number)} {noun}{'s' * (number != 1)}"


def microbatches(number: int) -> str:
    """Format a number of microbatches."""
    return f"{count(number)} microbatch{'es' * (number != 1)}"


def words(key: str) -> str:
    """Spell a key of `predicted.memory` or `predicted.time` as words."""
    return key.replace("_", " ")


def short(text: str, most: int) -> str:
    """Cut a text to so many letters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def either(numbers: Sequence[int]) -> str:
    """Join numbers, with commas between thousands, as alternatives: `1, 3 or 9`; "" for none."""
    every = [f"{number:,}" for number in numbers]
    return " or ".join([part for part in (", ".join(every[:-1]), *every[-1:]) if part])


def picked(thing: object, *names: str) -> dict[str, Any]:
    """Return some attributes of a thing by name, in this order."""
    return {name: getattr(thing, name) for name in names}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted name as dicts in dicts: {"a.b": 1, "c": 2} -> {"a": {"b": 1}, "c": 2}."""
    data: dict[str, Any] = {}
    for name, value in values.items():
        *above, last = name.split(".")
        section = data
        for part in above:
            section = section.setdefault(part, {})
        section[last] = value
    return data


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return a dict of each key to the list of its values in their order; keys are in the order of their first pair."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def json_text(data: object) -> str:
    """Return data as JSON, indented by 2, with a final line end; other scripts stay, unprintable characters become
    escapes. Lone surrogates are kept (`lone`). Raises ValueError for NaN and infinities.
    """
    import json

    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    return "".join(c if c.isprintable() or c == "\n" or lone(c) else json.dumps(c)[1:-1] for c in text) + "\n"


def lone(char: str) -> bool:
    """Tell whether this is half of a pair, which no file in UTF-8 can hold: whoever writes one has to refuse it."""
    return "\ud800" <= char <= "\udfff"


def clean(text: str) -> str:
    """Return a text with secrets masked (`masked`), and unprintable characters but line ends replaced by backslash
    escapes.
    """
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in masked(text)
    )


def general(name: str) -> str:
    """Return the pattern `layers.*.up_proj` of `layers.3.up_proj`."""
    return re.sub(r"(?<![^._])\d+(?![^._])", "*", name)


def learn(text: str) -> None:
    """Add values in a text that are secrets by their names (`token=…`, `--password …`) to those that `masked` hides;
    not those under 6 characters, numbers, words of settings, or of names such as pad_token.
    """
    for match in _NAMED.finditer(text):
        if not _PLAIN.search(match["name"]) and not _WORDS.fullmatch(match["value"]):
            _learned.add(match["value"])


def forget() -> None:
    """Leave out what was learned: another person's files are next."""
    _learned.clear()


def masked(text: str) -> str:
    """Return a text with `***` for each learned secret that stands as a word of its own, and for each text shaped like
    a token (`hf_…`, `sk-…`).
    """
    for value in sorted(_learned, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", SHOWN, text) if value in text else text
    return _SHAPES.sub(SHOWN, text)
