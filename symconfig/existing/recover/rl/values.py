"""Workers of trainers of reinforcement learning, and what a script tells them, over what they have by themselves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from symconfig.descriptor.job import Backend
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.reading import Setting, Word
from symconfig.existing.launch.text import Place
from symconfig.existing.recover.arguments import FALSE, WRONG, Arguments
from symconfig.formats.keys import Keys, Trainer


@dataclass(frozen=True, slots=True)
class Workers:
    """A kind of workers that train a model; options: whether they take Megatron-LM's options.

    predicted: False if only the name is known. planned, target: of a better layout; a target of None is the trainer's.
    """

    name: str
    options: bool = False
    predicted: bool = True
    planned: Backend = "megatron"
    target: str | None = None


MEGATRON = Workers("megatron", options=True)
FSDP = Workers("fsdp", planned="fsdp", target="verl-fsdp")
DEEPSPEED = Workers("deepspeed", planned="deepspeed")
SHARDS = Workers("fsdp", planned="deepspeed")  # of programs whose plans are for DeepSpeed
DTENSOR = Workers("dtensor", planned="fsdp")
REPLICAS = replace(SHARDS, name="ddp")

_REFERENCE = "="  # before the key whose value is the default
_NULL = ("", "null", "none", "~")
_NOWHERE = Place("", 0, 0, 0, 0)  # of a default


@dataclass(frozen=True, slots=True, kw_only=True)
class Values(Arguments):
    """A trainer's options with its defaults, each by its field in the table `keys`, by its key, or by its name."""

    trainer: Trainer
    keys: Keys = field(default_factory=dict)

    def _names(self, key: str) -> list[str]:
        return [name for name, each in self.keys.items() if each.field == key] or [key]

    def name(self, key: str) -> str:
        """Return a field's key: the first of its keys that is given, else that has a default, else the first."""
        names = self._names(key)
        usual = (name for name in names if name in self.keys and self.keys[name].unset is not None)
        return next(filter(self.given, names), next(usual, names[0]))

    def find(self, *names: str) -> Setting | None:
        """Return the setting of a field or key (`names`: one), else the default's; a default "=key" is that key's."""
        name = self.name(names[0])
        if (setting := Arguments.find(self, name)) is not None:
            return setting
        usual = self.keys[name].unset if name in self.keys else None
        if isinstance(usual, str) and usual.startswith(_REFERENCE):
            return self.find(usual.removeprefix(_REFERENCE))
        return None if usual is None else Setting(name, name, (Word.of(str(usual), _NOWHERE),), _NOWHERE)

    def given(self, *names: str) -> bool:
        """Return whether the script gives a field or key (`names`: one); defaults do not count."""
        return Arguments.find(self, *self._names(names[0])) is not None

    def place(self, *names: str) -> Place | None:
        """Return where the script gives a field or key (`names`: one); None if it does not."""
        setting = Arguments.find(self, *self._names(names[0]))
        return None if setting is None else setting.place

    def problem(self, key: str, what: str, file: str, **words: Any) -> Problem:
        """Return a problem about an option, with its place; if it is not given, with the file's name only."""
        if (setting := Arguments.find(self, *self._names(key))) is not None:
            return setting.problem(what, **words)
        return Problem(what, file, field=self.trainer.spelled(self.name(key)), **words)

    def text(self, *names: str) -> str | None:
        """Return the value or default of a field or key (`names`: one); None if it is absent, null or none."""
        text = Arguments.text(self, *names)
        return None if text is None or text.lower() in _NULL else text

    def silent(self, *names: str) -> bool:
        """Return whether a field or key (`names`: one) is absent, null or none; not if its value is unknown."""
        setting = self.find(*names)
        return setting is None or (setting.unknown is None and self.text(*names) is None)

    def alpha(self, rank: int, file: str) -> float:
        """Return an adapter's alpha: 2 x rank for none or 0 in a program without a default number. Raises InputError.

        Elsewhere null, 0 and less are no alpha that is described. file: of a problem without a place.
        """
        field = "adapter.lora_alpha"
        alpha, name = self.number(field), self.name(field)
        if not alpha and (name not in self.keys or self.keys[name].unset is None):
            return 2.0 * rank
        if alpha is None or alpha <= 0:
            got = "nothing" if alpha is None else f"{alpha:g}"
            raise InputError(self.problem(field, WRONG, file, got=got, need="a number above zero"))
        return alpha

    def switch(self, *names: str) -> bool:
        """Return whether a switch is on: without a value, or with any but FALSE and null; else its default."""
        text = Arguments.text(self, *names)
        return text == "" or (text is not None and text.lower() not in (*FALSE, *_NULL))
