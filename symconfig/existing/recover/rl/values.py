"""What a trainer of reinforcement learning is told, over what it has by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from symconfig.errors import Problem
from symconfig.existing.launch.reading import Setting
from symconfig.existing.launch.text import Place
from symconfig.existing.recover.arguments import FALSE, Arguments
from symconfig.existing.recover.rl.trainers import Trainer
from symconfig.formats.keys import Keys, Value

_REFERENCE = "="  # before the key whose value is the default
_NULL = ("", "null", "none", "~")


@dataclass(frozen=True, slots=True)
class Values:
    """Settings of a trainer, each by the field of its table or by its key. What is wrong with a value that is asked for
    is in `arguments.problems`."""

    trainer: Trainer
    settings: Sequence[Setting]
    keys: Keys = field(default_factory=dict)
    arguments: Arguments = field(init=False)
    _names: dict[str, list[str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", Arguments(self.settings))
        for name, key in self.keys.items():
            self._names.setdefault(key.field, []).append(name)

    def name(self, key: str) -> str:
        """Return the key of a field: the one that the script says, else the first that has a default."""
        names = self._names.get(key, [key])
        given = (name for name in names if self.arguments.given(name))
        return next(given, None) or next((name for name in names if self._unset(name) is not None), names[0])

    def _unset(self, name: str) -> Value:
        return self.keys[name].unset if name in self.keys else None

    def _decides(self, key: str) -> tuple[str, Value]:
        """Return the key whose value holds, and its default; None where the script says it."""
        name = self.name(key)
        if self.arguments.given(name):
            return name, None
        usual = self._unset(name)
        if isinstance(usual, str) and usual.startswith(_REFERENCE):
            return self._decides(usual.removeprefix(_REFERENCE))
        return name, usual

    def given(self, key: str) -> bool:
        """Return whether the script says it."""
        return self.arguments.given(self.name(key))

    def problem(self, key: str, what: str, file: str, **words: Any) -> Problem:
        """Return a Problem about an option: where it stands, or in a file that does not have it."""
        if (setting := self.arguments.find(self.name(key))) is not None:
            return setting.problem(what, **words)
        return Problem(what, file, field=self.trainer.spelled(self.name(key)), **words)

    def place(self, key: str) -> Place | None:
        """Return where the script says it."""
        return self.arguments.place(self.name(key))

    def words(self, key: str) -> tuple[str, ...]:
        """Return all values of a list that the script says."""
        return self.arguments.words(self.name(key))

    def text(self, key: str) -> str | None:
        """Return the value as text; None where there is none, or where it is not known."""
        name, usual = self._decides(key)
        if self.arguments.given(name):
            text = self.arguments.text(name)
            return None if text is None or text.lower() in _NULL else text
        return None if usual is None else str(usual)

    def whole(self, key: str) -> int | None:
        """Return a whole number above zero."""
        name, usual = self._decides(key)
        if self.text(name) is None:
            return None
        return self.arguments.whole(name) if self.arguments.given(name) else int(usual or 0)

    def number(self, key: str) -> float | None:
        """Return a number."""
        name, usual = self._decides(key)
        if self.text(name) is None:
            return None
        return self.arguments.number(name) if self.arguments.given(name) else float(usual or 0)

    def switch(self, key: str) -> bool:
        """Return whether it is on; a flag without a value is."""
        name, _ = self._decides(key)
        if self.arguments.text(name) == "":
            return True
        text = self.text(name)
        return text is not None and text.lower() not in FALSE
