"""A DeepSpeed configuration with a plan's batch, ZeRO stage, offload and degrees in it.

Also the arguments of its program where these are Transformers' Trainer's, on a command line or in its YAML.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from symconfig.descriptor.document import KeyPath, dotted
from symconfig.errors import InputError
from symconfig.existing.adapt import launcher, trees
from symconfig.existing.adapt.draft import (
    ELSE_TOO,
    KEY_TOO,
    NO_PLACE,
    Change,
    Draft,
    Option,
    Progress,
    with_option,
)
from symconfig.existing.adapt.same import check_program
from symconfig.existing.launch.reading import Reading, Tree
from symconfig.existing.recover.arguments import TRUE, Arguments
from symconfig.existing.recover.deepspeed import RECOMPUTE, at, run, uses_trainer
from symconfig.existing.recover.run import Supplied
from symconfig.formats.deepspeed import KEYS
from symconfig.frameworks.deepspeed.keys import ACCUMULATION, AUTO, MICRO
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed

# Keys of DeepSpeed's JSON that a plan decides and that the Trainer has arguments for.
ARGUMENTS: Mapping[KeyPath, tuple[str, ...]] = {key.path: key.arguments for key in KEYS if key.field and key.arguments}
NAMES = tuple(name for names in ARGUMENTS.values() for name in names) + RECOMPUTE
# Arguments that show whose they are, in transformers/training_args.py under these names.
_MARKS = ("per_device_train_batch_size", ACCUMULATION, "num_train_epochs", "max_steps", "output_dir", "learning_rate")
_ENOUGH = 2  # of them: a program of one's own may have one
_ROUNDS = 4  # what one key means may depend on another that was changed
_OPTION = "recompute"
# Fields of a configuration that are compared where they have one name here.
_TOGETHER: Mapping[str, tuple[str, ...]] = {
    "batch": ("micro", "global_batch"),
    _OPTION: ("recompute", "recompute_modules", "recompute_method", "recompute_layers"),
}
# Of what a plan decides, first what the program's arguments may say: where they do not, the file's place is reported.
_FIELDS = (
    *dict.fromkeys(key.field for key in sorted(KEYS, key=lambda key: not key.arguments) if key.field),
    _OPTION,
)


@dataclass(frozen=True, slots=True)
class KeyWish:
    """A key of the DeepSpeed JSON and the value that it should have; None: it should be removed."""

    path: KeyPath
    value: Any

    @property
    def name(self) -> str:
        return dotted(self.path)

    @property
    def now(self) -> str | None:
        return None if self.value is None else trees.spelled(self.value)


def adapt(draft: Draft, plan: Plan) -> Progress:
    """Return the progress with the plan's values in the JSON and the program's arguments, and its GPUs in the launcher.

    Up to four rounds, as one value may change what another means. What cannot be written is listed as unplaced. Raises
    InputError without a DeepSpeed JSON, or if the model or the sequence length is not the plan's.
    """
    reading = draft.reading
    if reading.deepspeed is None:
        what = "the plan is for DeepSpeed, and no DeepSpeed JSON was read here"
        raise InputError(what, file=reading.file, hint="symconfig render PLAN.json --out DIR, which writes new files")
    check_program(reading, plan)
    progress, config, before = Progress(draft), deepspeed.config(plan), None
    # Where the JSON has "auto" and the Trainer's argument is missing, no batch is known, and nothing can be compared.
    for path in ((MICRO,), (ACCUMULATION,)) if _has_trainer(reading) else ():
        if reading.deepspeed.get(*path) == AUTO and _argument(reading, path) is None:
            progress = _with_key(progress, KeyWish(path, at(config, path)))
    for _ in range(_ROUNDS):
        differing = _differing(progress.draft.reading, plan)
        if not differing or differing == before:
            break
        before = differing
        for field in differing:
            progress = _recomputed(progress, plan) if field == _OPTION else progress
            for wish in _wishes(progress.draft.reading, config, field):
                progress = _with_key(progress, wish)
    return launcher.with_gpus(progress, plan)


def _differing(reading: Reading, plan: Plan) -> Sequence[str]:
    """Return the fields of `_FIELDS` in which the run that the configuration describes differs from the plan.

    All but recompute if the run is invalid.
    """
    best = plan.best.configuration
    stated = Supplied(model=plan.model, gpus=best.world_size, seq_length=best.seq_length)
    try:
        now = run(reading, plan.cluster, stated).configuration
    except InputError:
        return _FIELDS[:-1]
    return [
        field
        for field in _FIELDS
        if any(getattr(now, name) != getattr(best, name) for name in _TOGETHER.get(field, (field,)))
    ]


def _wishes(reading: Reading, config: dict[str, Any], field: str) -> Iterator[KeyWish]:
    """Yield a KeyWish for each key of a field whose value in the reading's JSON is not that in the plan's, `config`.

    A key that the plan's JSON lacks is to be removed, an `enabled` to be false. Accumulation that neither the JSON nor
    an argument gives is left out: DeepSpeed derives it.
    """
    for path in (key.path for key in KEYS if key.field == field):
        have, want = reading.deepspeed.get(*path) if reading.deepspeed else None, at(config, path)
        derived = have is None and path == (ACCUMULATION,) and _argument(reading, path) is None
        if have != want and not derived and (want is not None or have):
            yield KeyWish(path, False if want is None and path[-1] == "enabled" else want)


def _with_key(progress: Progress, wish: KeyWish) -> Progress:
    """Return the progress with one key set or removed as `wish` says, recorded as a change or listed as unplaced, as is
    a key of a section that is no object.

    If the JSON has "auto", or lacks the key and an argument gives it, the Trainer's argument is set (for "auto" without
    the argument only if the Trainer reads the JSON), but nothing for a removal, a key that no argument takes, or False
    without the argument. Else the key in the JSON is, and the argument if given, too.
    """
    reading = progress.draft.reading
    tree, name = reading.deepspeed, _argument(reading, wish.path)
    assert tree is not None, "adapt has looked"
    have = tree.get(*wish.path)
    if have == AUTO or (have is None and name is not None):
        if wish.path not in ARGUMENTS or wish.now is None or (name is None and wish.value is False):
            return progress
        usual = name or ARGUMENTS[wish.path][0]
        if name is not None or _has_trainer(reading):
            return _with_argument(progress, usual, str(wish.value))
        why = f'it is "auto" here, and --{usual}, which Transformers takes for it, is not given'
        return progress.with_unplaced(wish.name, wish.now, why, tree.place(wish.path, of_key=True))
    sections = (wish.path[:size] for size in range(1, len(wish.path)))
    if wrong := next((at for at in sections if at in tree.spans and not isinstance(tree.get(*at), dict)), None):
        why = f"{'.'.join(map(str, wrong))} is no object there"
        return progress.with_unplaced(wish.name, wish.now, why, tree.place(wrong, of_key=True))
    data = _data_with(tree.data, wish)
    goal = replace(progress.draft.meaning, deepspeed=data)
    after = progress.draft.first_right((_key_edits(tree, wish),), goal.__eq__)
    if after is None:
        return progress.with_unplaced(wish.name, wish.now, KEY_TOO, tree.place(wish.path, of_key=True))
    was = None if have is None else trees.spelled(have)
    there, at_hand = (after.reading.deepspeed, after) if wish.now is not None else (tree, progress.draft)
    place = (there or tree).place(wish.path, of_key=True) or tree.text.place(0, 0)
    place = at_hand.in_source(place) or place
    progress = progress.with_changes(after, Change(wish.name, was, wish.now, place))
    return _with_argument(progress, name, str(wish.value)) if name and wish.now is not None else progress


def _key_edits(tree: Tree, wish: KeyWish) -> trees.Edits:
    """Return the edits that set a key of the JSON to the wish's value, or remove it (None)."""
    path, value = wish.path, wish.value
    if value is None:
        lonely = len(path) > 1 and len(tree.get(*path[:-1])) == 1
        return trees.removed(tree, path[:-1] if lonely else path)
    if path in tree.spans:
        return trees.changed(tree, path, value)
    size = next(size for size in range(len(path) - 1, -1, -1) if path[:size] in tree.spans)
    for key in reversed(path[size + 1 :]):
        value = {str(key): value}
    return trees.inserted(tree, path[:size], str(path[size]), value)


def _data_with(data: Any, wish: KeyWish) -> Any:
    """Return a copy of the data with the key set, or removed with a section that has no other."""
    done = copy.deepcopy(data)
    inner = outer = done
    for key in wish.path[:-1]:
        outer, inner = inner, inner.setdefault(key, {})
    if wish.value is not None:
        inner[wish.path[-1]] = wish.value
        return done
    del inner[wish.path[-1]]
    if len(wish.path) > 1 and not inner:
        del outer[wish.path[-2]]
    return done


def _has_trainer(reading: Reading) -> bool:
    """Return whether the Trainer reads the JSON and at least two of its typical arguments (`_MARKS`) are given."""
    arguments = Arguments(reading.settings)
    return uses_trainer(arguments) and sum(map(arguments.given, _MARKS)) >= _ENOUGH


def _argument(reading: Reading, path: KeyPath) -> str | None:
    """Return the name of the given Trainer argument that sets a key; None without one or without the Trainer."""
    arguments = Arguments(reading.settings)
    if path not in ARGUMENTS or not uses_trainer(arguments):
        return None
    setting = arguments.find(*ARGUMENTS[path])
    return None if setting is None else setting.key


def _recomputed(progress: Progress, plan: Plan) -> Progress:
    """Return the progress with the plan's recompute set by the program's argument, as the JSON has no key for it.

    By `recompute_layers` if given, else, unless only some layers are recomputed, by the Trainer's checkpointing switch,
    else noted or listed as unplaced.
    """
    c, reading = plan.best.configuration, progress.draft.reading
    full, block = c.recompute == "full", c.recompute_method == "block"
    now = "0" if not full else str(c.recompute_layers) if block else "-1"
    arguments = Arguments(reading.settings)
    if arguments.given("recompute_layers"):
        return _with_argument(progress, "recompute_layers", now)
    if not block and _has_trainer(reading):
        setting = arguments.find(*RECOMPUTE)
        name = RECOMPUTE[0] if setting is None else setting.key
        return _with_argument(progress, name, str(full)) if full or setting is not None else progress
    layers = {"0": "nothing", "-1": "every layer"}.get(now, f"the first {now} layers")
    if not reading.settings:
        return progress.with_note(f"The plan recomputes {layers}; the training program's own arguments say that.")
    why = "the training program has an option of its own for it"
    return progress.with_unplaced("the recomputed layers", None if now == "0" else layers, why)


def _with_argument(progress: Progress, name: str, now: str) -> Progress:
    """Return the progress with an argument's value replaced, or the argument added next to another of the Trainer's.

    name: with underscores. now: the value; a bare switch is removed for "False". Unchanged if the argument has the
    value, a switch also if it is on for "True"; listed as unplaced if no edit changes just that in all runs.
    """
    draft = progress.draft
    reading = draft.reading
    setting = Arguments(reading.settings).find(name)
    if setting is not None and (
        setting.texts == (now,) or (now == "True" and (not setting.texts or setting.texts[0].lower() in TRUE))
    ):
        return progress
    value: str | None = now
    if setting is not None:
        lower = now in ("True", "False") and setting.text[:1].islower()  # a switch as the old text spells it
        value = None if not setting.values and now == "False" else now.lower() if lower else now
    option = f"--{name}" if setting is None else setting.name

    def same(other: Option) -> bool:
        return other[0] == option

    anchors = filter(None, map(Arguments(reading.settings).find, (*NAMES, *_MARKS)))
    after = with_option(draft, setting, anchors, option, None if value is None else (value,), same, same)
    spelled = name if setting is None else setting.spelled
    if after is None:
        why = NO_PLACE if setting is None else ELSE_TOO
        return progress.with_unplaced(spelled, value, why, None if setting is None else setting.place)
    if setting is not None:
        return progress.with_changes(after, Change(spelled, setting.text, value, setting.place))
    there = Arguments(after.reading.settings).find(name)
    assert there is not None, "is what was tried"
    return progress.with_changes(after, Change(there.spelled, None, value, there.place))
