"""Arguments of a training program that is not Megatron-LM's: each by its name, as numbers, switches and text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from symconfig.descriptor.document import shorten
from symconfig.errors import Problem
from symconfig.existing.launch.reading import Setting
from symconfig.existing.launch.text import Place

TRUE = ("", "true", "1", "yes", "on")  # "": a switch without a value
DIGITS = 12  # of no quantity of a run there are more
FALSE = ("false", "0", "no", "off", "none")


@dataclass(frozen=True, slots=True)
class Arguments:
    """A program's arguments by name, with `-` and `_` alike; of a repeated one the last counts.

    Reading a value that is malformed appends to `problems`, each problem once, and returns None.
    """

    settings: Sequence[Setting] = ()
    problems: list[Problem] = field(default_factory=list)

    def find(self, *names: str) -> Setting | None:
        """Return the last setting of the first of `names` (with underscores) that is given; None if none is."""
        for name in names:
            for setting in reversed(self.settings):
                if plain(setting.name) == name:
                    return setting
        return None

    def given(self, *names: str) -> bool:
        return self.find(*names) is not None

    def place(self, *names: str) -> Place | None:
        setting = self.find(*names)
        return setting.place if setting else None

    def text(self, *names: str) -> str | None:
        """Return the argument's first value; "" for a switch; None if it is absent.

        Also None if its value is not known, which is recorded in `problems`.
        """
        setting = self.find(*names)
        if setting is None:
            return None
        if setting.unknown:
            self._wrong(setting, f"its value {setting.unknown}")
            return None
        return setting.values[0].text if setting.values else ""

    def words(self, *names: str) -> tuple[str, ...]:
        """Return all values as words, also split at commas and spaces; empty if the argument is absent or not known."""
        if self.text(*names) is None:
            return ()
        setting = self.find(*names)
        values = setting.values if setting else ()
        return tuple(part for word in values for part in word.text.replace(",", " ").split())

    def whole(self, *names: str) -> int | None:
        """Return a positive integer; None if it is absent.

        Also None if it is anything else or has more than 12 digits, which is recorded in `problems`.
        """
        text = self.text(*names)
        if text is None:
            return None
        if text.isascii() and text.isdigit() and len(text) <= DIGITS and int(text) > 0:
            return int(text)
        self._not(names, text, "a whole number above zero")
        return None

    def number(self, *names: str) -> float | None:
        """Return a finite float; None if it is absent, or if it is no number, which is recorded in `problems`."""
        text = self.text(*names)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            return value
        self._not(names, text, "a number")
        return None

    def switch(self, *names: str) -> bool | None:
        """Return whether a switch is on: `--bf16` and `--bf16 True` are, `--bf16 False` is not; None if it is absent.

        Also None if its value is neither true nor false, which is recorded in `problems`.
        """
        text = self.text(*names)
        if text is None:
            return None
        if text.lower() not in (*TRUE, *FALSE):
            self._not(names, text, "True or False")
            return None
        return text.lower() in TRUE

    def _not(self, names: Sequence[str], text: str, need: str) -> None:
        setting = self.find(*names)
        if setting is not None:
            self._wrong(setting, "has a wrong value", got=shorten(text) or "nothing", need=need)

    def _wrong(self, setting: Setting, what: str, **words: str | None) -> None:
        problem = setting.problem(what, **words)
        if problem not in self.problems:
            self.problems.append(problem)

    @staticmethod
    def problem(setting: Setting | None, what: str, **words: Any) -> Problem:
        """Return a problem about a setting with its place; without a setting one without a place.

        words: got, need and hint.
        """
        return Problem(what, **words) if setting is None else setting.problem(what, **words)


def plain(name: str) -> str:
    """Return an option's name without leading dashes and with `_` for `-`: --Seq-Length becomes Seq_Length."""
    return name.lstrip("-").replace("-", "_")
