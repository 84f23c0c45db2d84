"""A DeepSpeed configuration with a plan's batch, ZeRO stage, offload and degrees in it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from symconfig.descriptor.document import KeyPath, dotted
from symconfig.errors import InputError, Problem
from symconfig.existing.adapt import launcher, trainer, trees
from symconfig.existing.adapt.draft import Draft, Progress, several, why_apart
from symconfig.existing.adapt.mending import because, mended
from symconfig.existing.adapt.outcome import Change, Flaw, Unplaced
from symconfig.existing.adapt.same import check_program
from symconfig.existing.launch.follow import ACCELERATE
from symconfig.existing.launch.reading import Reading, Tree
from symconfig.existing.launch.text import Edit, Place
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.deepspeed import run
from symconfig.existing.recover.deepspeed_json import at
from symconfig.existing.recover.run import Run, Supplied
from symconfig.existing.rules.rule import Finding
from symconfig.formats.deepspeed import KEYS
from symconfig.frameworks.deepspeed.keys import ACCUMULATION, AUTO, MICRO
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed

_ROUNDS = 4  # what one key means may depend on another that was changed


_RECOMPUTE = "options.recompute"
# Of what a plan decides, first what the program's arguments may say: where they do not, the file's place is told.
_FIELDS = (
    *dict.fromkeys(key.field for key in sorted(KEYS, key=lambda key: not key.arguments) if key.field),
    _RECOMPUTE,
)


def adapt(draft: Draft, plan: Plan) -> Progress:
    """Return the progress with the plan's values in the DeepSpeed JSON and the program's arguments, and the GPUs in its
    launcher.

    What cannot be written is listed as unplaced; all of it, without any change, where runs of one program differ.
    Raises InputError where there is no DeepSpeed JSON, or the model or the sequence length is not the plan's.
    """
    reading = draft.reading
    if reading.deepspeed is None:
        raise InputError(_no_json(reading))
    check_program(reading, plan)
    if several(reading, trainer.NAMES):
        return Progress(draft).lacking(Unplaced("the plan, all of it,", "", why_apart(reading)))
    progress, config, before = Progress(draft), deepspeed.config(plan), None
    for wish in _missing_batch_keys(reading, config):
        progress = _with_key(progress, wish)
    for _ in range(_ROUNDS):
        differing = _differing(progress.draft.reading, plan)
        if not differing or differing == before:
            break
        before = differing
        for field in differing:
            progress = _recompute(progress, plan) if field == _RECOMPUTE else progress
            for wish in _wishes(progress.draft.reading, config, field):
                progress = _with_key(progress, wish)
    return launcher.numbers(progress, plan)


def _no_json(reading: Reading) -> Problem:
    """Return the problem that no DeepSpeed configuration was found, or that Accelerate's file, which may have it, was
    not read.
    """
    for item in reading.unread:
        if ACCELERATE in item.why:
            return item.place.problem(
                f"names {ACCELERATE}, which is not read: what it says of DeepSpeed cannot be changed",
                field=item.what,
                hint="symconfig render PLAN.json --target accelerate --out DIR, which writes one with its values",
            )
    return Problem("the plan is for DeepSpeed, and no DeepSpeed configuration was found here", file=reading.file)


def audited(progress: Progress, original: Reading, plan: Plan) -> tuple[Progress, tuple[Flaw, ...]]:
    """Return the progress with errors of the audit repaired where the plan's value for one key does, or removing the
    key; and the errors left.
    """
    config = deepspeed.config(plan)
    apart = _differing(progress.draft.reading, plan)

    def repairs(now: Progress, finding: Finding) -> Iterator[Progress]:
        """Yield the progress with the finding's key set to the plan's value, and then with the key removed, where that
        can be done.
        """
        tree = now.draft.reading.deepspeed
        path = next((each for each in tree.spans if dotted(each) == finding.problem.field), ()) if tree else ()
        for value in (at(config, path), None) if path else ():
            after = _with_key(now, KeyWish(path, value))
            if len(after.changes) > len(now.changes):
                yield replace(after, changes=(*after.changes[:-1], replace(after.changes[-1], why=because(finding))))

    return mended(progress, plan, original, repairs, lambda draft: set(_differing(draft.reading, plan)) <= set(apart))


def original(reading: Reading, plan: Plan) -> Run:
    """Return the run that the configuration describes, on the plan's cluster; with the plan's GPUs where it states
    none. Raises InputError.
    """
    stated = _stated_by_plan(plan)
    return run(reading, plan.cluster, replace(stated, gpus=reading.world.gpus or stated.gpus))


def _missing_batch_keys(reading: Reading, config: dict[str, Any]) -> Iterator[KeyWish]:
    """Yield the plan's micro batch or accumulation steps where the JSON has "auto" and the Trainer's argument is
    missing.

    Without these no batch is known, and nothing can be compared. Yield nothing for a program that is not the Trainer's.
    """
    tree = reading.deepspeed
    for path in ((MICRO,), (ACCUMULATION,)) if tree is not None and trainer.used(reading) else ():
        if tree is not None and tree.get(*path) == AUTO and not _by_argument(reading, path):
            yield KeyWish(path, at(config, path))


def _stated_by_plan(plan: Plan) -> Supplied:
    return Supplied(model=plan.model, gpus=plan.best.parallel.world_size, seq_length=plan.best.batch.seq_length)


def _recompute(progress: Progress, plan: Plan) -> Progress:
    """Return the progress with the plan's recompute set by the program's argument, or else unplaced, as the JSON has no
    key for it.

    Without any known argument of a program, it is only noted.
    """
    recompute, reading = plan.best.options.recompute, progress.draft.reading
    full = recompute.granularity == "full"
    now = "0" if not full else str(recompute.num_layers) if recompute.method == "block" else "-1"
    if Arguments(reading.settings).given("recompute_layers"):
        return trainer.valued(progress, "recompute_layers", now)
    if recompute.method != "block" and trainer.used(reading):
        return trainer.recomputed(progress, full)
    words = {"0": "nothing", "-1": "every layer"}.get(now, f"the first {now} layers")
    if not reading.settings:
        return progress.noted(f"The plan recomputes {words}; the training program's own arguments say that.")
    why = "the training program says it in its own way"
    return progress.lacking(Unplaced("the recomputed layers", None if now == "0" else words, why))


def _differing(reading: Reading, plan: Plan) -> Sequence[str]:
    """Return the fields of `_FIELDS` whose value differs from the plan's.

    Return every field but recompute if the configuration is invalid.
    """
    try:
        have = run(reading, plan.cluster, _stated_by_plan(plan))
    except InputError:
        return _FIELDS[:-1]
    best, now = plan.best, have.configuration
    pairs = {
        "batch": ((now.micro, now.global_batch), (best.batch.micro, best.batch.global_)),
        "parallel": (now.degrees, best.parallel),
        "options": (have.options, best.options),
    }

    def differs(field: str) -> bool:
        where, _, name = field.partition(".")
        mine, wanted = pairs[where]
        return bool(attrgetter(name)(mine) != attrgetter(name)(wanted) if name else mine != wanted)

    return [field for field in _FIELDS if differs(field)]


def _wishes(reading: Reading, config: dict[str, Any], field: str) -> Iterator[KeyWish]:
    for path in (key.path for key in KEYS if key.field == field):
        have, want = reading.deepspeed.get(*path) if reading.deepspeed else None, at(config, path)
        derived = have is None and path == (ACCUMULATION,) and not _by_argument(reading, path)
        if have != want and not derived and (want is not None or have):
            yield KeyWish(path, False if want is None and path[-1] == "enabled" else want)


def _by_argument(reading: Reading, path: KeyPath) -> bool:
    return trainer.name_of(reading, path) is not None


def _with_key(progress: Progress, wish: KeyWish) -> Progress:
    """Return the progress with one key set: by the Trainer's argument where the JSON has "auto", else in the JSON.

    If the Trainer has an argument for a key that is set in the JSON, the argument is set, too, as the two must agree.
    """
    tree = progress.draft.reading.deepspeed
    assert tree is not None, "adapt has looked"
    have = tree.get(*wish.path)
    if have == AUTO or (have is None and _by_argument(progress.draft.reading, wish.path)):
        return _with_argument(progress, wish)
    progress = keyed(progress, wish)
    if progress.draft.meaning.deepspeed == tree.data:
        return progress
    # The Trainer stops where its argument and the JSON say different numbers.
    name = trainer.name_of(progress.draft.reading, wish.path)
    return trainer.valued(progress, name, str(wish.value)) if name and wish.now is not None else progress


def _with_argument(progress: Progress, wish: KeyWish) -> Progress:
    """Return the progress with the Trainer's argument for a key set or added.

    Return it unchanged where the Trainer derives the value. Where the program is not known to have the Trainer's
    arguments, a missing one is listed as unplaced.
    """
    reading = progress.draft.reading
    if wish.path not in trainer.ARGUMENTS or wish.now is None:
        return progress
    name = trainer.name_of(reading, wish.path)
    if name is not None:
        return trainer.valued(progress, name, str(wish.value))
    name = trainer.ARGUMENTS[wish.path][0]
    if wish.value is False:
        return progress  # as it is without the argument
    if trainer.used(reading):
        return trainer.given(progress, name, str(wish.value))
    why = f'it is "auto" here, and --{name}, which Transformers takes for it, is not given'
    place = where(reading.deepspeed, wish.path) if reading.deepspeed is not None else None
    return progress.lacking(Unplaced(wish.name, wish.now, why, place))


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
        return None if self.value is None else trees.spelled(self.value, "json")


def keyed(progress: Progress, wish: KeyWish) -> Progress:
    """Return the progress with one key written into, or removed from, the JSON.

    The key is listed as unplaced where no edit changes just that.
    """
    tree = progress.draft.reading.deepspeed
    assert tree is not None, "is asked for where there is one"
    have = tree.get(*wish.path)
    goal = progress.draft.meaning.configured(_data_with(tree.data, wish))
    after = progress.draft.tried(_ways(tree, wish), goal.__eq__)
    if after is None:
        why = "it cannot be written there so that nothing else changes"
        return progress.lacking(Unplaced(wish.name, wish.now, why, where(tree, wish.path)))
    was = None if have is None else trees.spelled(have, "json")
    now = after.reading.deepspeed if have is None else tree
    return progress.went(after, Change(wish.name, was, wish.now, where(now or tree, wish.path)))


def where(tree: Tree, path: KeyPath) -> Place:
    """Return the place of a key, or of the innermost existing section that would hold it."""
    size = next(size for size in range(len(path), -1, -1) if path[:size] in tree.spans)
    span = tree.spans[path[:size]]
    return span.key or span.value


def _ways(tree: Tree, wish: KeyWish) -> Iterator[tuple[Edit, ...]]:
    """Yield alternative edits that set or remove a key; a section that would be left empty is removed whole."""
    path = wish.path
    if wish.value is None:
        lonely = len(path) > 1 and len(tree.get(*path[:-1])) == 1
        yield from trees.removed(tree, path[:-1] if lonely else path)
    elif path in tree.spans:
        yield from trees.changed(tree, path, wish.value)
    else:
        yield from _inserted(tree, path, wish.value)


def _inserted(tree: Tree, path: KeyPath, value: Any) -> Iterator[tuple[Edit, ...]]:
    """Yield alternative edits that insert a missing key, with the missing sections above it."""
    size = next(size for size in range(len(path) - 1, -1, -1) if path[:size] in tree.spans)
    for key in reversed(path[size + 1 :]):
        value = {str(key): value}
    yield from trees.inserted(tree, path[:size], str(path[size]), value)


def _data_with(data: Any, wish: KeyWish) -> Any:
    """Return a copy of the data with the key set or removed.

    A section left empty by that is removed, too (one level).
    """
    done = copy.deepcopy(data)
    inner: Any = done
    parents: list[tuple[Any, str | int]] = []
    for key in wish.path[:-1]:
        parents.append((inner, key))
        inner = inner.setdefault(key, {})
    if wish.value is not None:
        inner[wish.path[-1]] = wish.value
        return done
    del inner[wish.path[-1]]
    if parents and not inner:
        parents[-1][0].pop(parents[-1][1])
    return done
