"""Keys of `config.json` that only a family's rule or its blocks read, found by asking the import.

A rule is a function from keys to fields, and no table says its inverse. So each key that it reads is tried with the
values that could give what the descriptor says: the other value of a switch, the numbers that are missing, and the
number that follows where a field is linear in the key. What comes nearer is kept; what is not reached is not said, and
the reader of the file (`config_writer.unsaid`) names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.architectures.architecture import Architecture, Derived
from symconfig.descriptor.architectures.fields import is_read
from symconfig.descriptor.architectures.keys import RULED
from symconfig.errors import InputError

Json = dict[str, Any]
Fields = Mapping[str, object]
_ROUNDS = 4  # a key may be of use only once another one is right


@dataclass(frozen=True, slots=True)
class Wanted:
    """The meaning of a model by field, and all fields that it has, among them those that stand for nothing in it."""

    computed: Fields
    plain: Fields

    def get(self, name: str) -> object:
        return self.computed.get(name, self.plain.get(name))

    def missing(self, theirs: Fields) -> list[str]:
        """Return the fields that another model has otherwise."""
        return [name for name in sorted({*self.computed, *theirs}) if self.get(name) != theirs.get(name)]


def searched(config: Json, architecture: Architecture, wanted: Wanted, read: Callable[[Json], Fields]) -> Json:
    """Return the file with the values of further keys that bring it nearest to what is wanted."""
    target = _Import(Wanted(_leaves(wanted.computed), _leaves(wanted.plain)), read)
    best, left = config, target.lost(config)
    for _ in range(_ROUNDS):
        before = best
        for key in _open(architecture) if left else ():
            for value in _candidates(key, best, architecture, target):
                trial = {**best, key: value}
                if (lost := target.lost(trial)) < left:
                    best, left = trial, lost
        if best is before:
            break
    return best


@dataclass(frozen=True, slots=True)
class _Import:
    """The import of a file as it is, against what it should be."""

    wanted: Wanted
    read: Callable[[Json], Fields]

    def fields(self, config: Json) -> Fields | None:
        """Return what a file says; None where it is none."""
        try:
            return _leaves(self.read(config))
        except InputError:
            return None

    def lost(self, config: Json) -> int:
        """Return how many fields a file says otherwise."""
        theirs = self.fields(config)
        return len(self.wanted.plain) + 1 if theirs is None else len(self.wanted.missing(theirs))


def _open(architecture: Architecture) -> Iterator[str]:
    """Yield the keys that no table gives a field for, and that the import reads all the same."""
    for key in architecture.defaults:
        if key not in RULED and (is_read(architecture, key) or len(architecture.only.get(key, ())) > 1):
            yield key


def _candidates(key: str, config: Json, architecture: Architecture, target: _Import) -> Iterator[Any]:
    """Yield values that a key could have."""
    default = architecture.defaults[key]
    yield from architecture.only.get(key, ())
    if isinstance(default, bool):
        yield not config.get(key, default)
        return
    theirs = target.fields(config)
    number = "int" in architecture.types.get(key, "") or not isinstance(default, str)  # auto, or a number
    if theirs is None or isinstance(default, list | dict) or not number:
        return
    numbers = [target.wanted.get(name) for name in target.wanted.missing(theirs)]
    whole = type(default) is int
    for one in dict.fromkeys(one for one in map(_number, numbers) if one is not None):
        yield one
        if one > 0 and not whole:  # of factors, some are stated as divisors or by their square
            yield from (_round(1 / one), _round(one**-0.5))
    if isinstance(default, float):
        yield 1.0  # such a factor is none
    if default is None or isinstance(default, Derived):
        yield from (None, True)
        return
    yield from _linear(key, config.get(key, default), config, theirs, target)


def _linear(key: str, value: object, config: Json, theirs: Fields, target: _Import) -> Iterator[float]:
    """Yield what a number has to be where a field that is missing goes up with it, or down as its inverse."""
    value = _number(value)
    twice = target.fields({**config, key: 2 * value}) if value else None
    if value is None or twice is None:
        return
    for name in target.wanted.missing(theirs):
        low, high, goal = (_number(fields.get(name)) for fields in (theirs, twice, target.wanted))
        if low is not None and high is not None and goal is not None and low != high:
            yield from _whole(value + (goal - low) * value / (high - low), type(value))
            if goal:
                yield from _whole(value * low / goal, type(value))


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _round(number: float) -> float:
    """Return a number without the last digits, in which a computed one differs from a stated one."""
    return float(f"{number:.12g}")


def _whole(number: float, kind: type) -> Iterator[float]:
    if kind is float:
        yield number
    elif float(number).is_integer() and number >= 0:
        yield int(number)


def _leaves(fields: Fields) -> dict[str, object]:
    """Return fields with lists of objects opened: a mixer's sizes are fields of their own."""
    leaves: dict[str, object] = {}
    for name, value in fields.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for index, one in enumerate(value):
                leaves |= _leaves({f"{name}[{index}].{inner}": item for inner, item in one.items()})
        elif isinstance(value, dict):
            leaves |= _leaves({f"{name}.{inner}": item for inner, item in value.items()})
        else:
            leaves[name] = value
    return leaves
