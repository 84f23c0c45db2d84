"""Old names of Megatron-LM's options with what says the same today, and the option that a misspelt name means."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from symconfig.frameworks.megatron.flags import flags
from symconfig.resources import opened

State = Literal["refused", "idle", "old", "gone"]  # as rows/old_options.yaml says


@dataclass(frozen=True, slots=True)
class Old:
    """today: options that say it now; None: nothing does, or need not."""

    state: State
    why: str
    today: str | None = None


def _old() -> Mapping[str, Old]:
    with opened(Path(__file__).parent / "rows" / "old_options.yaml") as file:
        return {name: Old(**row) for name, row in yaml.load(file, Loader=yaml.SafeLoader).items()}


OLD = _old()
ALIKE = 0.9  # of difflib: "--micro-batchsize" is, "--log-batch-size" is not "--log-world-size"
MISSING = 2  # words


@cache
def meant(name: str, version: str) -> str | None:
    """Return the option of this version that a misspelt or shortened name probably means; None if none is similar."""
    return nearest(name, flags(version).flags)


def nearest(name: str, options: Iterable[str]) -> str | None:
    """Return the shortest option that contains the words of the name (`_contains_words`), else the closest spelling.

    Options that begin with the same word go first. None if none is similar. A --no-X never matches --X.
    """
    words = _words(name)
    options = [option for option in options if (_words(option)[0] == "no") == (words[0] == "no")]
    spelled = "--" + "-".join(words)
    longer = [option for option in options if _contains_words(_words(option), words)]
    if longer:
        return min(longer, key=lambda option: (_words(option)[0] != words[0], len(_words(option)), option))
    matches = difflib.get_close_matches(spelled, options, n=1, cutoff=ALIKE)
    return matches[0] if matches else None


def _words(name: str) -> list[str]:
    return name.lstrip("-").replace("_", "-").lower().split("-")


def _contains_words(option: list[str], words: list[str]) -> bool:
    """Return whether the option has the two or more words in order, maybe shortened, and at most two others."""
    if len(words) < 2 or not len(words) <= len(option) <= len(words) + MISSING:
        return False
    left = iter(option)
    return all(any(other.startswith(word) for other in left) for word in words if word)
