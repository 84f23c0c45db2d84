"""Trainers, and their keys, each with the field of a run that it says: one table, written by rendering, read by
recovering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from symconfig.formats.links import value_of

Value = str | float | bool | None
Write = Callable[[Any], object] | Value


class Key(NamedTuple):
    """A program's key.

    field: the path of its field in a run; "" if it is only written. unset: the program's default; "=KEY": the value of
    another key. write: a constant, or a function of the run; None: the field's value.
    """

    field: str
    unset: Value = None
    write: Write = None


Keys = Mapping[str, Key]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trainer:
    """A trainer of reinforcement learning or fine-tuning.

    release: version whose defaults hold. keys: its options by name, with their defaults. dashes: prefix of an option on
    the command line, and separator of its words. offload: option that moves an unused reference to the host.
    """

    name: str
    release: str
    keys: Keys = field(default_factory=dict)
    dashes: tuple[str, str] = ("--", "_")
    offload: str | None = None

    def spelled(self, key: str) -> str:
        """Return the option as it is written on the command line."""
        return self.dashes[0] + key.replace("_", self.dashes[1])


def keys(at: str = "", /, **fields: str | tuple[Any, ...] | Write) -> dict[str, Key]:
    """Return Keys by full name, each given as a field path, a tuple of Key's members, or what to write.

    What to write is a function of the run or a constant other than text. at: the section before the names, or "".
    """
    return {
        f"{at}.{name}" if at else name: (
            Key(each) if isinstance(each, str) else Key(*each) if isinstance(each, tuple) else Key("", None, each)
        )
        for name, each in fields.items()
    }


def unset(table: Keys, *names: str) -> dict[str, int]:
    """Return the program's defaults of these keys, which are whole numbers, by name; 0 for a key without one."""
    return {name: int(table[name].unset or 0) for name in names}


def where(field: str) -> Callable[[Any], object]:
    """Return a function that gives a run's field; None where it is false, 0 or empty."""
    return lambda run: value_of(run, field) or None


def of_algorithm(algorithm: str, value: object) -> Callable[[Any], object]:
    """Return a function that gives `value` for RL runs of this algorithm; None for others."""
    return lambda run: value if run.rl.algorithm == algorithm else None


def if_set(field: str, value: object, otherwise: object = None) -> Callable[[Any], object]:
    """Return a function that gives `value` for runs whose field is true, else `otherwise`."""
    return lambda run: value if value_of(run, field) else otherwise


def write(table: Keys, run: Any) -> dict[str, object]:
    """Return the program's values by key for a run: what each key's `write` gives, without one its field; no None."""
    values = {
        name: value_of(run, key.field) if key.write is None else key.write(run) if callable(key.write) else key.write
        for name, key in table.items()
    }
    return {name: value for name, value in values.items() if value is not None}


def lora(
    rank: str, alpha: str, dropout: str, targets: str, *, unset: tuple[Value, Value, Value] = (None, None, None)
) -> dict[str, Key]:
    """Return the keys of a LoRA adapter under these names of the program, "" for none.

    unset: the program's defaults of rank, alpha and dropout.
    """
    fields = {rank: "adapter.r", alpha: "adapter.lora_alpha", dropout: "adapter.lora_dropout"}
    known = {name: Key(field, usual) for (name, field), usual in zip(fields.items(), unset, strict=False) if name}
    return {**known, **({targets: Key("adapter.targets")} if targets else {})}
