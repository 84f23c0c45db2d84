"""The arguments of a program around Transformers' Trainer, on a command line or in its YAML: another value, or one
more in the style of what stands there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from symconfig.descriptor.document import KeyPath
from symconfig.existing.adapt import trees, words
from symconfig.existing.adapt.draft import Draft, Meaning, Progress, alike, together
from symconfig.existing.adapt.outcome import NO_PLACE, Change, Unplaced
from symconfig.existing.adapt.ways import one_value
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.launch.text import Edit
from symconfig.existing.recover.arguments import TRUE, Arguments, plain
from symconfig.existing.recover.deepspeed import RECOMPUTE
from symconfig.existing.recover.deepspeed_json import uses_trainer
from symconfig.formats.deepspeed import KEYS
from symconfig.frameworks.deepspeed.keys import ACCUMULATION

# Keys of DeepSpeed's JSON that a plan decides and that the Trainer has arguments for.
ARGUMENTS: Mapping[KeyPath, tuple[str, ...]] = {key.path: key.arguments for key in KEYS if key.field and key.arguments}
NAMES = tuple(name for names in ARGUMENTS.values() for name in names) + RECOMPUTE
# Arguments that show whose they are, in transformers/training_args.py under these names.
_MARKS = ("per_device_train_batch_size", ACCUMULATION, "num_train_epochs", "max_steps", "output_dir", "learning_rate")
_ENOUGH = 2  # of them: a program of one's own may have one


def used(reading: Reading) -> bool:
    """Return whether the program's arguments are the Trainer's: at least two of its typical ones are given."""
    arguments = Arguments(reading.settings)
    return uses_trainer(arguments) and sum(map(arguments.given, _MARKS)) >= _ENOUGH


def name_of(reading: Reading, path: KeyPath) -> str | None:
    """Return the given Trainer argument, with underscores, that sets a key of the JSON.

    Return None if none is given or the program has no Trainer.
    """
    arguments = Arguments(reading.settings)
    if path not in ARGUMENTS or not uses_trainer(arguments):
        return None
    setting = arguments.find(*ARGUMENTS[path])
    return None if setting is None else plain(setting.name)


def recomputed(progress: Progress, on: bool) -> Progress:
    """Return the progress with activation checkpointing of every layer switched on or off by the Trainer's argument.

    Unchanged if it is to be off and no argument is given.
    """
    arguments = Arguments(progress.draft.reading.settings)
    setting = arguments.find(*RECOMPUTE)
    if setting is not None:
        return valued(progress, plain(setting.name), str(on))
    return given(progress, RECOMPUTE[0], str(True)) if on else progress


def valued(progress: Progress, name: str, now: str) -> Progress:
    """Return the progress with an argument's value replaced; a bare switch is removed if `now` is "False".

    name: with underscores; it must be given. Unchanged if it has the value; listed as unplaced where no edit changes
    just that.
    """
    draft = progress.draft
    setting = _find(draft.reading, name)
    assert setting is not None, "it has been asked for"
    if setting.texts == (now,) or (now == "True" and (not setting.texts or setting.texts[0].lower() in TRUE)):
        return progress
    value = None if not setting.values and now == "False" else _in_same_case(setting.text, now)
    after = draft.tried(
        _ways(draft, setting, value), lambda meaning: _changed_alone(draft.meaning, name, value, meaning)
    )
    if after is None:
        why = "to write it there would change something else as well"
        return progress.lacking(Unplaced(setting.spelled, value, why, setting.place))
    return progress.went(after, Change(setting.spelled, setting.text, value, setting.place))


def given(progress: Progress, name: str, value: str) -> Progress:
    """Return the progress with an argument added next to another one of the Trainer's, on the command line or in its
    YAML.

    Listed as unplaced where there is no such place.
    """
    draft = progress.draft
    anchors = filter(None, (_find(draft.reading, each) for each in (*NAMES, *_MARKS)))
    ways = (
        way
        for anchor in anchors
        for way in together([_added(draft, each, name, value) for each in alike(draft.reading, anchor)])
    )
    after = draft.tried(ways, lambda meaning: _changed_alone(draft.meaning, name, value, meaning))
    if after is None:
        return progress.lacking(Unplaced(name, value, NO_PLACE))
    there = _find(after.reading, name)
    assert there is not None, "is what was tried"
    return progress.went(after, Change(there.spelled, None, value, there.place))


def _find(reading: Reading, name: str) -> Setting | None:
    return Arguments(reading.settings).find(name)


def _changed_alone(before: Meaning, name: str, value: str | None, after: Meaning) -> bool:
    """Return whether every run now has this value of the argument (None: lacks it), and nothing else changed."""
    wanted = None if value is None else (value.lower(),)
    values = (run.says(name) for run in (after, *after.runs))
    return after.less({name}) == before.less({name}) and all(
        (None if each is None else tuple(map(str.lower, each))) == wanted for each in values
    )


def _in_same_case(old: str, new: str) -> str:
    """Return `new`, in lower case if it is a switch and the old text is in lower case."""
    return new.lower() if new in ("True", "False") and old[:1].islower() else new


def _ways(draft: Draft, setting: Setting, value: str | None) -> Iterator[tuple[Edit, ...]]:
    tree = draft.reading.tree_at(setting.place)
    if tree is None:
        yield from together([_in_words(draft, each, value) for each in alike(draft.reading, setting)])
    elif value is not None and (path := trees.path_at(tree, setting.place)):
        yield from trees.changed(tree, path, _data(value))


def _in_words(draft: Draft, setting: Setting, value: str | None) -> Iterator[tuple[Edit, ...]]:
    if value is None:
        yield from words.removed(setting, draft.texts)
    elif len(setting.values) == 1:
        yield from one_value(draft, setting, value)


def _added(draft: Draft, anchor: Setting, name: str, value: str) -> Iterator[tuple[Edit, ...]]:
    tree = draft.reading.tree_at(anchor.place)
    if tree is None:
        yield from words.added(anchor, (f"--{name}", value), draft.texts)
    elif path := trees.path_at(tree, anchor.place):
        yield from trees.inserted(tree, path[:-1], name, _data(value), str(path[-1]))


def _data(value: str) -> Any:
    """Return a switch or number as data: "True" as True, "8" as 8. Raises ValueError for any other text."""
    return json.loads(value.lower())
