"""What a trainer of reinforcement learning is told, over what it has by itself (`defaults.json`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from symconfig.errors import Problem
from symconfig.existing.launch.reading import Setting
from symconfig.existing.launch.text import Place
from symconfig.existing.recover.arguments import FALSE, Arguments
from symconfig.existing.recover.rl.trainers import Trainer

Value = str | float | bool | None
_DEFAULTS = Path(__file__).with_name("defaults.json")
_REFERENCE = "="  # before the key whose value is the default
_NULL = ("", "null", "none", "~")


@cache
def defaults(trainer: Trainer) -> Mapping[str, Value]:
    """Return the defaults of a trainer by key."""
    values: dict[str, Value] = json.loads(_DEFAULTS.read_text(encoding="utf-8"))[trainer.name]["values"]
    return values


@dataclass(frozen=True, slots=True)
class Values:
    """Settings of a trainer by key. What is wrong with a value that is asked for is in `arguments.problems`."""

    trainer: Trainer
    settings: Sequence[Setting]
    arguments: Arguments = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", Arguments(self.settings))

    def given(self, key: str) -> bool:
        """Say whether the script says it."""
        return self.arguments.given(key)

    def problem(self, key: str, what: str, file: str, **words: Any) -> Problem:
        """Return a Problem about an option: where it stands, or in a file that does not have it."""
        if (setting := self.arguments.find(key)) is not None:
            return setting.problem(what, **words)
        return Problem(what, file, field=self.trainer.spelled(key), **words)

    def place(self, key: str) -> Place | None:
        """Return where the script says it."""
        return self.arguments.place(key)

    def text(self, key: str) -> str | None:
        """Return the value as text; None where there is none, or where it is not known."""
        if self.given(key):
            text = self.arguments.text(key)
            return None if text is None or text.lower() in _NULL else text
        usual = defaults(self.trainer).get(key)
        if isinstance(usual, str) and usual.startswith(_REFERENCE):
            return self.text(usual.removeprefix(_REFERENCE))
        return None if usual is None else str(usual)

    def whole(self, key: str) -> int | None:
        """Return a whole number above zero."""
        text = self.text(key)
        if text is None:
            return None
        return self.arguments.whole(key) if self.given(key) else self._referred(key, text)

    def _referred(self, key: str, text: str) -> int | None:
        """Return a default as a number; that of another key is what the script says there."""
        usual = defaults(self.trainer).get(key)
        if isinstance(usual, str) and usual.startswith(_REFERENCE):
            return self.whole(usual.removeprefix(_REFERENCE))
        return int(text)

    def number(self, key: str) -> float | None:
        """Return a number."""
        text = self.text(key)
        if text is None:
            return None
        return self.arguments.number(key) if self.given(key) else float(text)

    def switch(self, key: str) -> bool:
        """Say whether it is on; a flag without a value is."""
        if self.given(key) and self.arguments.text(key) == "":
            return True
        text = self.text(key)
        return text is not None and text.lower() not in FALSE
