"""Values that look like secrets, which no output shows: tokens, passwords and keys in people's files.

What reads such a file has it `learned`; what writes an answer has its text `masked`. A value is a secret by the name
that it is given (HF_TOKEN, wandb.api_key, --password), or by its own shape, which issuers of tokens chose for scanners.
"""

from __future__ import annotations

import re

SHOWN = "***"
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


def learn(text: str) -> None:
    """Take the values of a text that are secrets by their names."""
    for match in _NAMED.finditer(text):
        if not _PLAIN.search(match["name"]) and not _WORDS.fullmatch(match["value"]):
            _learned.add(match["value"])


def forget() -> None:
    """Leave out what was learned: another person's files are next."""
    _learned.clear()


def masked(text: str) -> str:
    """Return a text without the secrets that were learned, and without what has a token's shape."""
    for value in sorted(_learned, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", SHOWN, text) if value in text else text
    return _SHAPES.sub(SHOWN, text)
