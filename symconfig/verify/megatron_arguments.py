"""A rendered (or hand-edited) argument list: its words, and in which options it differs from what was rendered."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from symconfig.descriptor.document import MAX_BYTES
from symconfig.errors import InputError
from symconfig.existing.launch.bash.expand import unescaped
from symconfig.existing.recover.arguments import settings
from symconfig.resources import content

FILE = "megatron_args.txt"
_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.|\$'((?:[^'\\]|\\.)*)'""", re.DOTALL)


def read(folder: Path) -> list[str]:
    """Read the words of megatron_args.txt. Raises InputError when it cannot be read as shell words."""
    path = folder / FILE
    try:
        return shlex.split(_QUOTED.sub(_plainly, content(path, MAX_BYTES).decode("utf-8")))
    except ValueError as error:
        raise InputError(f"cannot be read: {error}", file=str(path)) from None


def _plainly(match: re.Match[str]) -> str:
    """Quote a word of `$'...'`, which shlex does not know, in single quotes; leave others as they are."""
    return match[0] if match[1] is None else shlex.quote(unescaped(match[1]))


def edits(words: Sequence[str], rendered: Sequence[str]) -> str:
    """Name the options in which a list differs from the rendered one, as words; nothing if none does."""
    given, before = _values(words), _values(rendered)
    changed = (option for option in dict.fromkeys((*given, *before)) if given.get(option) != before.get(option))
    return ", ".join(f"{_spelled(option, given)} (rendered: {_spelled(option, before)})" for option in changed)


def _values(words: Sequence[str]) -> dict[str, list[str]]:
    """Group the values by option; the last of a repeated one wins, as in argparse."""
    return {setting.name: [word.text for word in setting.values] for setting in settings(words, FILE)}


def _spelled(option: str, given: Mapping[str, list[str]]) -> str:
    return " ".join((option, *given[option])) if option in given else f"no {option}"
