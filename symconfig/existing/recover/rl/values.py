"""Trainers of reinforcement learning and their workers, and what a script tells them, over what they have by
themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from symconfig.descriptor.job import Backend
from symconfig.errors import Problem
from symconfig.existing.launch.dialects import nemo_rl, openrlhf, verl
from symconfig.existing.launch.reading import Setting
from symconfig.existing.launch.text import Place
from symconfig.existing.recover.arguments import FALSE, Arguments
from symconfig.formats import tuners
from symconfig.formats.keys import Keys, Value
from symconfig.formats.openrlhf import KEYS as OPENRLHF_KEYS
from symconfig.formats.slime import KEYS as SLIME_KEYS
from symconfig.formats.verl import TUNING


@dataclass(frozen=True, slots=True)
class Workers:
    """What trains a model. options: it takes Megatron-LM's. predicted: False for those of which a name alone is known.
    planned, target: the backend and the target of a better layout; None: the trainer's own."""

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
    """Return verl's workers of a name."""
    return _OF_VERL.get(name, Workers(name, predicted=False))


@dataclass(frozen=True, slots=True)
class Trainer:
    """A trainer. release: whose defaults hold. longest: its options of the longest prompt and response. dashes: how an
    option's name is spelled on the command line, by what stands before it and between its words. offload: what brings a
    reference that is not read to the host, as a person writes it. whole: its option of the longest of both together.
    keys: all that it is told, by name."""

    name: str
    release: str
    longest: tuple[str, str]
    dashes: tuple[str, str] = ("--", "_")
    offload: str | None = None
    whole: str | None = None
    keys: Keys = field(default_factory=dict, compare=False)

    def spelled(self, key: str) -> str:
        """Return an option as a person writes it."""
        return self.dashes[0] + key.replace("_", self.dashes[1])


VERL = Trainer(
    "verl",
    verl.RELEASE,
    ("rl.prompt_length.max", "rl.response_length.max"),
    ("", "_"),
    "ref.megatron.param_offload=True",
)
VERL_TUNING = Trainer("verl's fine-tuning", verl.RELEASE, ("longest", "longest"), ("", "_"), keys=TUNING)
SLIME = Trainer("slime", "0.3.1", ("rl.prompt_length.max", "rl.response_length.max"), ("--", "-"), keys=SLIME_KEYS)
OPENRLHF = Trainer(
    "openrlhf",
    openrlhf.RELEASE,
    ("prompt_max_len", "rl.response_length.max"),
    offload="--ref.offload",
    whole="rl.longest",
    keys=OPENRLHF_KEYS,
)
TUNERS = {
    each.name: Trainer(each.name, each.release, each.longest, each.dashes)
    for each in (*tuners.TUNERS, tuners.TRANSFORMERS)
}
TRL, LLAMAFACTORY, SWIFT = (TUNERS[each.name] for each in (tuners.TRL, tuners.LLAMAFACTORY, tuners.SWIFT))
NEMO = Trainer(nemo_rl.FORMAT, "0.7.0", ("rl.prompt_length.max", "rl.response_length.max"), ("", "_"))


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
