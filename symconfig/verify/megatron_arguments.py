"""A rendered (or hand-edited) argument list, read through the flag table: values with the parser's own defaults."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from symconfig.errors import InputError, Problem
from symconfig.render.flags import FlagTable

FILE = "megatron_args.txt"


def read(folder: Path) -> list[str]:
    """The words of megatron_args.txt. Raises InputError when it cannot be read as shell words."""
    path = folder / FILE
    try:
        return shlex.split(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(Problem(f"cannot be read: {error}", file=str(path))) from None


class ArgumentList:
    """Values by option. The last of a repeated option wins, as in argparse; unknown options are left to the table."""

    def __init__(self, words: Sequence[str], table: FlagTable) -> None:
        self._table = table
        self.given: dict[str, list[str]] = {}
        self.repeated: list[str] = []
        name = ""
        for word in words:
            option, joined, value = word.partition("=")
            if option.startswith("--"):
                if option in self.given:
                    self.repeated.append(option)
                name = option
                self.given[name] = [value] if joined else []
            elif name:
                self.given[name].append(word)

    def at_least(self, version: str) -> bool:
        return self._table.at_least(version)

    def has(self, option: str) -> bool:
        return option in self.given

    def text(self, option: str) -> str | None:
        """The single value, else the parser's default; None for no value, and in a version without the option."""
        if values := self.given.get(option):
            return values[0]
        flag = self._table.flags.get(option)
        return None if flag is None or flag.default == "None" else flag.default

    def maybe(self, option: str) -> int | None:
        """As a number; None when it is not one (the flag table then says so)."""
        try:
            return int(self.text(option) or "")
        except ValueError:
            return None

    def number(self, option: str, otherwise: int = 1) -> int:
        value = self.maybe(option)
        return otherwise if value is None else value


def edits(words: Sequence[str], rendered: Sequence[str], table: FlagTable) -> str:
    """In which options a list differs from the one that was rendered, as words; nothing if in none."""
    given, before = ArgumentList(words, table).given, ArgumentList(rendered, table).given
    changed = (option for option in dict.fromkeys((*given, *before)) if given.get(option) != before.get(option))
    return ", ".join(f"{_spelled(option, given)} (rendered: {_spelled(option, before)})" for option in changed)


def _spelled(option: str, given: Mapping[str, list[str]]) -> str:
    return " ".join((option, *given[option])) if option in given else f"no {option}"
