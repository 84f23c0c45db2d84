"""The arguments of a program around Transformers' Trainer, on a command line or in its YAML: another value, or one
more in the style of what stands there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from symconfig.descriptor.document import KeyPath
from symconfig.existing.adapt.draft import Progress
from symconfig.existing.adapt.options import Option, of, put
from symconfig.existing.launch.reading import Reading
from symconfig.existing.recover.arguments import TRUE, Arguments, plain
from symconfig.existing.recover.deepspeed import LLAMAFACTORY, RECOMPUTE, RECOMPUTE_OFF
from symconfig.existing.recover.deepspeed_auto import SAID_BY, uses_trainer
from symconfig.frameworks.deepspeed.keys import ACCUMULATION, MICRO

# Keys of DeepSpeed's JSON that a plan decides and that the Trainer has arguments for.
ARGUMENTS: Mapping[KeyPath, tuple[str, ...]] = {
    path: SAID_BY[path] for path in ((MICRO,), (ACCUMULATION,), ("bf16", "enabled"), ("fp16", "enabled"))
}
NAMES = tuple(name for names in ARGUMENTS.values() for name in names) + RECOMPUTE
# Arguments that show whose they are, in transformers/training_args.py under these names.
MARKS = ("per_device_train_batch_size", ACCUMULATION, "num_train_epochs", "max_steps", "output_dir", "learning_rate")
_ENOUGH = 2  # of them: a program of one's own may have one


def used(reading: Reading) -> bool:
    """Tell whether the program's arguments are those of the Trainer."""
    arguments = Arguments(reading.settings)
    return uses_trainer(arguments) and sum(map(arguments.given, MARKS)) >= _ENOUGH


def name_of(reading: Reading, path: KeyPath) -> str | None:
    """Return the argument that says a key of the JSON here, as the program spells it with underscores."""
    arguments = Arguments(reading.settings)
    if path not in ARGUMENTS or not uses_trainer(arguments):
        return None
    setting = arguments.find(*ARGUMENTS[path])
    return None if setting is None else plain(setting.name)


def spelled(value: Any) -> str:
    """Spell a value as an argument."""
    return str(value)


def recomputed(progress: Progress, on: bool) -> Progress:
    """Recompute every layer, or none, by the argument that says it here."""
    arguments = Arguments(progress.draft.reading.settings)
    setting = arguments.find(*RECOMPUTE)
    if setting is not None:
        return valued(progress, plain(setting.name), spelled(on))
    if arguments.given(RECOMPUTE_OFF):
        return valued(progress, RECOMPUTE_OFF, spelled(not on))
    if arguments.given(*LLAMAFACTORY):
        return progress if on else given(progress, RECOMPUTE_OFF, spelled(True))
    return given(progress, RECOMPUTE[0], spelled(True)) if on else progress


def valued(progress: Progress, name: str, now: str) -> Progress:
    """Put another value for an argument, named with underscores; a switch without one goes where it is to be off."""
    setting = of(progress.draft.reading, name)
    assert setting is not None, "it has been asked for"
    words = setting.texts
    if words == (now,) or (now == "True" and (words[0].lower() if words else "") in TRUE):
        return progress
    return put(progress, Option(name, None if not words and now == "False" else (now,), partial(spoken, name)))


def given(progress: Progress, name: str, value: str) -> Progress:
    """Add an argument beside another of the Trainer's."""
    anchors = (of(progress.draft.reading, mark) for mark in (*NAMES, *MARKS))
    known = tuple(each for each in anchors if each is not None)
    return put(progress, Option(name, (value,), partial(spoken, name), known))


def spoken(name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return an argument as words of a command line."""
    return (f"--{name}", *values)
