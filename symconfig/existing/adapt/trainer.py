"""The arguments of a program around Transformers' Trainer, on a command line or in its YAML: another value, or one
more in the style of what stands there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from symconfig.descriptor.document import KeyPath
from symconfig.existing.adapt import trees, words
from symconfig.existing.adapt.draft import Meaning, Progress
from symconfig.existing.adapt.outcome import Change, Unplaced
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.launch.text import Edit
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
    draft = progress.draft
    setting = Arguments(draft.reading.settings).find(name)
    assert setting is not None, "it has been asked for"
    words = setting.texts
    if words == (now,) or (_boolean(now) and (words[0].lower() if words else "") in TRUE and now == "True"):
        return progress
    spelled = None if not words and now == "False" else _like(words, now)
    goal = draft.meaning.setting(draft.index(setting), None if spelled is None else (spelled,))
    after = draft.tried(_ways(progress, setting, spelled), goal.__eq__)
    if after is None:
        why = "to write it there would change something else as well"
        return progress.lacking(Unplaced(setting.spelled, now, why, setting.place))
    return progress.went(after, Change(setting.spelled, setting.text, spelled, setting.place))


def _boolean(text: str) -> bool:
    return text in ("True", "False")


def _like(words: tuple[str, ...], now: str) -> str:
    """Return a boolean in the letters of the one that stands there."""
    return now.lower() if _boolean(now) and words and words[0].islower() else now


def _ways(progress: Progress, setting: Setting, now: str | None) -> Iterator[tuple[Edit, ...]]:
    draft = progress.draft
    tree = draft.reading.tree_at(setting.place)
    if tree is not None and setting.values:
        path = trees.path_at(tree, setting.values[0].place)
        if path is not None:
            yield from trees.removed(tree, path) if now is None else trees.changed(tree, path, _data(now))
    elif now is None:
        yield from words.removed(setting, draft.texts)
    elif len(setting.values) == 1:
        yield from words.changed(setting.values[0], now, draft.texts)


def _data(text: str) -> Any:
    """Return a value as YAML has it."""
    return {"true": True, "false": False}.get(text.lower(), int(text) if text.isdecimal() else text)


def given(progress: Progress, name: str, value: str) -> Progress:
    """Add an argument beside another of the Trainer's."""
    draft, arguments = progress.draft, Arguments(progress.draft.reading.settings)
    before = draft.meaning
    for mark in (*NAMES, *MARKS):
        anchor = arguments.find(mark)
        if anchor is None:
            continue
        after = draft.tried(_after(progress, anchor, name, value), partial(_gained, before, name, value))
        if after is not None:
            new = Arguments(after.reading.settings).find(name)
            assert new is not None, "it has been read"
            return progress.went(after, Change(new.spelled, None, value, new.place))
    why = "no place was found where it would reach the training and change nothing else"
    return progress.lacking(Unplaced(f"--{name}", value, why))


def _gained(before: Meaning, name: str, value: str, after: Meaning) -> bool:
    """Tell whether a configuration says the same and this argument once more, as a command line or YAML spells it."""
    return any(
        before.gained(option, (text,), after) for option in (f"--{name}", name) for text in (value, value.lower())
    )


def _after(progress: Progress, anchor: Setting, name: str, value: str) -> Iterator[tuple[Edit, ...]]:
    tree = progress.draft.reading.tree_at(anchor.place)
    if tree is None:
        yield from words.added(anchor, (f"--{name}", value), progress.draft.texts)
        return
    path = trees.path_at(tree, anchor.place)
    if path:
        yield from trees.inserted(tree, path[:-1], name, _data(value), str(path[-1]))
