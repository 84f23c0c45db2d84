"""The "auto" values of a DeepSpeed JSON, as Transformers' Trainer fills them in from its own arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from symconfig.descriptor.document import KeyPath
from symconfig.existing.recover.arguments import Arguments
from symconfig.formats.deepspeed import BY_PATH, KEYS, Key
from symconfig.frameworks.deepspeed.keys import AUTO, TRAIN, ZERO

Json = dict[str, Any]
# Set by Accelerate, under the Trainer, whatever the file says (accelerate/utils/dataclasses.py, DeepSpeedPlugin).
OVERWRITTEN: frozenset[KeyPath] = frozenset({("steps_per_print",)})
_OF_STEPS = frozenset({("scheduler", "params", "total_num_steps"), ("scheduler", "params", "warmup_num_steps")})


def autos(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of every value "auto" in nested dictionaries."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from autos(item, (*path, key))
    elif value == AUTO:
        yield path


def fills(path: KeyPath, stage: int) -> bool:
    """Return whether the Trainer fills in an "auto" at this path; sizes of ZeRO-3's own keys only at stage 3."""
    key = BY_PATH.get(path)
    if key is not None and key.sized:
        return stage == 3 or key.stages != "3"
    return (key is not None and key.default is not None) or path in _OF_STEPS or path == (TRAIN,)


def uses_trainer(arguments: Arguments) -> bool:
    """Return whether Transformers' Trainer reads the JSON: unless it is passed as DeepSpeed's own --deepspeed_config
    FILE.
    """
    return not arguments.given("deepspeed_config")


def filled(config: Any, arguments: Arguments, hidden_size: int | None) -> Any:
    """Return a copy of the JSON with each "auto" replaced by the value of the Trainer's arguments or their defaults.

    An "auto" train_batch_size is removed, as DeepSpeed computes it. "auto" stays where the value is not known: without
    any arguments, for sizes if `hidden_size` is None, and for numbers of steps. A config that is no dict is returned as
    it is.
    """
    if not isinstance(config, dict):
        return config
    copy: Json = _copied(config)
    if copy.get(TRAIN) == AUTO:
        del copy[TRAIN]
    stage = at(copy, (ZERO, "stage"))
    for path in list(autos(copy)):
        key, section = BY_PATH.get(path), at(copy, path[:-1])
        if key is None or not fills(path, stage):
            continue
        if key.default is not None and arguments.settings:
            section[path[-1]] = _argued(key, arguments)
        elif key.sized and hidden_size is not None:
            section[path[-1]] = key.sized(hidden_size)
    return copy


def _argued(key: Key, arguments: Arguments) -> Any:
    """Return a key's value from the Trainer's arguments, else its default; a list if the default is a tuple."""
    if isinstance(key.default, bool):
        return bool(arguments.switch(*key.arguments))
    if isinstance(key.default, int):
        return arguments.whole(*key.arguments) or key.default
    defaults = key.default if isinstance(key.default, tuple) else (key.default,)
    given = zip(map(arguments.number, key.arguments), defaults, strict=True)
    values = [default if value is None else value for value, default in given]
    return values if isinstance(key.default, tuple) else values[0]


def mismatches(config: Any, arguments: Arguments) -> Iterator[tuple[KeyPath, Any, Any]]:
    """Yield (path, JSON's value, arguments' value) where both give one and they differ: the Trainer then stops."""
    for key in KEYS:
        have = at(config, key.path)
        if have in (None, AUTO) or not arguments.given(*key.arguments):
            continue
        if have != (wanted := _argued(key, arguments)):
            yield key.path, have, wanted


def at(config: Any, path: KeyPath) -> Any:
    """Return the value at a path of nested dictionaries; None if any key is absent."""
    for key in path:
        config = config.get(key) if isinstance(config, dict) else None
    return config


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value
