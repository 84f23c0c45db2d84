"""Trainers of reinforcement learning and their workers, and what a script tells them, over what they have by
themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from symconfig.descriptor.job import Backend
from symconfig.errors import Problem
from symconfig.existing.launch.dialects import nemo_rl, openrlhf, verl
from symconfig.existing.launch.reading import Setting, Word
from symconfig.existing.launch.text import Place
from symconfig.existing.recover.arguments import FALSE, Arguments
from symconfig.formats.keys import Keys
from symconfig.formats.openrlhf import KEYS as OPENRLHF_KEYS
from symconfig.formats.slime import KEYS as SLIME_KEYS
from symconfig.formats.tuners import Trainer


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
_OF_VERL = {each.name: each for each in (MEGATRON, FSDP)}


def of_verl(name: str) -> Workers:
    """Return verl's workers by name; ones that are not predicted if the name is unknown."""
    return _OF_VERL.get(name, Workers(name, predicted=False))


VERL = Trainer(name="verl", release=verl.RELEASE, dashes=("", "_"), offload="ref.megatron.param_offload=True")
SLIME = Trainer(name="slime", release="0.3.1", dashes=("--", "-"), keys=SLIME_KEYS)
OPENRLHF = Trainer(
    name="openrlhf",
    release=openrlhf.RELEASE,
    longest=("prompt_max_len", "rl.response_length.max"),
    offload="--ref.offload",
    whole="rl.longest",
    keys=OPENRLHF_KEYS,
)
NEMO = Trainer(name=nemo_rl.FORMAT, release="0.7.0", dashes=("", "_"))

_REFERENCE = "="  # before the key whose value is the default
_NULL = ("", "null", "none", "~")


@dataclass(frozen=True, slots=True)
class Values:
    """Settings of a trainer with its defaults, each by its field in the table or by its key.

    Reading a malformed value records a problem in `arguments.problems`.
    """

    trainer: Trainer
    settings: Sequence[Setting]
    keys: Keys = field(default_factory=dict)
    arguments: Arguments = field(init=False)
    _completed: Arguments = field(init=False)
    _names: dict[str, list[str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Keep the script's settings, and these over the defaults of all keys."""
        arguments, top = Arguments(self.settings), Place("", 0, 0, 0, 0)
        usual = ((name, key.unset) for name, key in self.keys.items() if key.unset is not None)
        defaults = (Setting(name, name, (Word.of(str(value), top),), top) for name, value in usual)
        object.__setattr__(self, "arguments", arguments)
        object.__setattr__(self, "_completed", Arguments((*defaults, *self.settings), arguments.problems))
        for name, key in self.keys.items():
            self._names.setdefault(key.field, []).append(name)

    def name(self, key: str) -> str:
        """Return a field's key: the first of its keys that is given, else that has a default; itself if unknown."""
        names = self._names.get(key, [key])
        held = (name for arguments in (self.arguments, self._completed) for name in names if arguments.given(name))
        return next(held, names[0])

    def _deciding(self, key: str) -> str:
        """Return the key whose value or default holds: a default that refers to another key ("=key") is followed."""
        usual = self.keys[name].unset if (name := self.name(key)) in self.keys else None
        refers = isinstance(usual, str) and usual.startswith(_REFERENCE) and not self.arguments.given(name)
        return self._deciding(str(usual).removeprefix(_REFERENCE)) if refers else name

    def given(self, key: str) -> bool:
        """Return whether the script gives a value for the key; defaults do not count."""
        return self.arguments.given(self.name(key))

    def problem(self, key: str, what: str, file: str, **words: Any) -> Problem:
        """Return a problem about an option, with its place; if it is not given, with the file's name only."""
        if (setting := self.arguments.find(self.name(key))) is not None:
            return setting.problem(what, **words)
        return Problem(what, file, field=self.trainer.spelled(self.name(key)), **words)

    def place(self, key: str) -> Place | None:
        """Return where the script gives the value; None if it does not."""
        return self.arguments.place(self.name(key))

    def words(self, key: str) -> tuple[str, ...]:
        """Return all values of a list in the script; empty if it is not given (defaults do not count)."""
        return self.arguments.words(self.name(key))

    def text(self, key: str) -> str | None:
        """Return the script's value, else the default, as text; None if it is absent, empty, null or none."""
        text = self._completed.text(self._deciding(key))
        return None if text is None or text.lower() in _NULL else text

    def whole(self, key: str) -> int | None:
        """Return the value or default as a positive integer; None if absent or, with a problem recorded, malformed."""
        return None if self.text(key) is None else self._completed.whole(self._deciding(key))

    def number(self, key: str) -> float | None:
        """Return the value or default as a float; None if absent or, with a problem recorded, malformed."""
        return None if self.text(key) is None else self._completed.number(self._deciding(key))

    def switch(self, key: str) -> bool:
        """Return whether the switch is on: without a value, or with any but FALSE and null; else its default."""
        text = self._completed.text(self._deciding(key))
        return text == "" or (text is not None and text.lower() not in (*FALSE, *_NULL))
