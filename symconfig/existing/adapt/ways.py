"""Ways to make one option of a script say something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from symconfig.existing.adapt import words
from symconfig.existing.adapt.draft import Draft, Meaning, alike, together
from symconfig.existing.adapt.goal import Wish, having, neighbours
from symconfig.existing.adapt.outcome import Change
from symconfig.existing.launch.reading import Setting
from symconfig.existing.launch.text import Edit
from symconfig.existing.recover.namespace import Namespace
from symconfig.formats.megatron_run import DECIDED
from symconfig.render.files import sh

MOST_ANCHORS = 6  # of places to put a new option, beyond which no other is likelier to do


def granted(draft: Draft, names: Namespace, wish: Wish, wanted: Namespace | None = None) -> Draft | None:
    """Return the draft with one option as `wish` wants it: added, changed or removed.

    Return None where no edit is known to change just that. wanted: the plan's options. With them, a variable that the
    value comes through may be edited even if other options of the plan change by it, to values that the plan has, too.
    """
    setting = having(names, wish.dest)
    if setting is None:
        return _added(draft, names, wish)
    if wish.values is None or not setting.values:
        return _without(draft, setting)
    if not wish.values:
        return None
    by_variable = None if wanted is None else _by_variable(draft, setting, wish, wanted)
    return by_variable or _changed(draft, setting, wish)


def _by_variable(draft: Draft, setting: Setting, wish: Wish, wanted: Namespace) -> Draft | None:
    """Return the draft with a new value for the variable that the option's value comes through.

    Return None where that is not right. It is right if every option gained is one of `wanted`, none lost was, and only
    options that a plan decides are lost. None also where the value comes through no variable or several, or the script
    starts further runs.
    """
    pieces = [piece for word in setting.values for piece in word.pieces if piece.text]
    if len(pieces) != 1 or not pieces[0].variables or wish.values is None or draft.reading.runs:
        return None
    way = next(words.changed(setting.values[0], wish.values[0], draft.texts), ())
    if [edit.place for edit in way] != [pieces[0].place]:
        return None
    before, flags = draft.meaning, wanted.table.flags
    options = Counter((each.name, tuple(each.texts)) for each in wanted.settings)

    def right(after: Meaning) -> bool:
        """Return whether all options gained are wanted, none lost was, and nothing but decided options changed."""
        gained, lost = (Counter(a.settings) - Counter(b.settings) for a, b in ((after, before), (before, after)))
        return (
            replace(after, settings=before.settings) == before
            and bool(gained)
            and not gained - options
            and not any(each in options for each in lost)
            and all(name in flags and flags[name].dest in DECIDED for name, _ in lost)
        )

    return draft.tried([way], right)


def change(wish: Wish, setting: Setting | None, before: Namespace, after: Namespace, why: str = "") -> Change:
    """Return the record of a change: at the option's place before all edits, or, if it was added, at its place now.

    setting: the option before this change; None: it was added. before, after: the options at first, and after this
    change. why: the reason, as a clause; empty if the plan is the reason.
    """
    if setting is None:
        new = after.setting(wish.dest)
        assert new is not None, "an option that was added has been read"
        return Change(wish.option, None, wish.now, new.place, why)
    gone = wish.values is None or not setting.values
    first = having(before, wish.dest) or setting
    return Change(setting.name, setting.text, None if gone else wish.now, first.place, why)


def _changed(draft: Draft, setting: Setting, wish: Wish) -> Draft | None:
    """Return the draft with the option's values replaced by the wish's, alike in every run.

    Return None where no edit does just that.
    """
    values = wish.values or ()
    goal = draft.meaning.setting(draft.index(setting), values)
    if len(values) == len(setting.values) == 1:
        ways = together([one_value(draft, each, values[0]) for each in alike(draft.reading, setting)])
    else:
        ways = together([_all_values(draft, each, values) for each in alike(draft.reading, setting)])
    return draft.tried(ways, lambda meaning: meaning == goal)


def one_value(draft: Draft, setting: Setting, value: str) -> Iterator[tuple[Edit, ...]]:
    """Yield alternative edits that replace an option's only value: its word, then the text behind the
    `=` of `key=$TP`.
    """
    yield from words.changed(setting.values[0], value, draft.texts)
    text = draft.texts.get(setting.place.file)
    if text is None or not (setting.joined or not setting.spelled.startswith("-")):
        return
    head, equals, tail = text.at(setting.place).partition("=")
    if equals:
        end = setting.place.end - (tail[-1:] in ("'", '"') and head[:1] == tail[-1:])
        yield (Edit(text.place(setting.place.start + len((head + equals).encode()), end), sh(value)),)


def _all_values(draft: Draft, setting: Setting, values: Sequence[str]) -> Iterator[tuple[Edit, ...]]:
    """Yield edits that replace all values at once, quoted and then bare.

    Yield nothing where they do not follow each other in one file.
    """
    first, last = setting.values[0].place, setting.values[-1].place
    if first.file == last.file and first.file in draft.texts and first.start <= last.end:
        text = draft.texts[first.file]
        for spelled in dict.fromkeys((" ".join(map(sh, values)), " ".join(values))):
            yield (Edit(text.place(first.start, last.end), spelled),)


def _without(draft: Draft, setting: Setting) -> Draft | None:
    goal = draft.meaning.setting(draft.index(setting), None)
    ways = together([words.removed(each, draft.texts) for each in alike(draft.reading, setting)])
    return draft.tried(ways, lambda meaning: meaning == goal)


def _added(draft: Draft, names: Namespace, wish: Wish) -> Draft | None:
    """Return the draft with the option added once in every run, beside a related one.

    Return None where no place does just that.
    """
    before, values = draft.meaning, wish.values or ()

    def right(after: Meaning) -> bool:
        return before.gained(wish.option, values, after)

    ways = chain.from_iterable(
        together([words.added(each, (wish.option, *values), draft.texts) for each in alike(draft.reading, anchor)])
        for anchor in _anchors(draft, names, wish)
    )
    return draft.tried(ways, right)


def _anchors(draft: Draft, names: Namespace, wish: Wish) -> Sequence[Setting]:
    """Return the options after which a new one may be inserted, best first: up to six related ones, then the last of
    all.

    Options about experts come first for one about experts, and the others for the others.
    """
    dests = sorted(neighbours(wish.dest), key=lambda dest: _of_experts(dest) != _of_experts(wish.dest))
    anchors = [setting for dest in dests if (setting := names.setting(dest))]
    return [*anchors[:MOST_ANCHORS], *draft.reading.settings[-1:]]


def _of_experts(dest: str) -> bool:
    """Return whether an option is about experts, by its destination's name."""
    return "moe" in dest or "expert" in dest
