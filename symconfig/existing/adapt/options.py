"""An option of a training program, on a command line or in its YAML: another value, one more in the style of what
stands there, one less."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from symconfig.existing.adapt import trees, words
from symconfig.existing.adapt.draft import Document, Draft, Meaning, Progress
from symconfig.existing.adapt.keys import inserted
from symconfig.existing.adapt.outcome import NO_PLACE, Change, Unplaced
from symconfig.existing.adapt.runs import alike, together
from symconfig.existing.adapt.ways import all_values, behind_equals, one_value
from symconfig.existing.launch.reading import Reading, Setting, Tree
from symconfig.existing.launch.text import Edit
from symconfig.existing.recover.arguments import Arguments, plain
from symconfig.render.files import sh

_OFF = ("false", "off", "null", "none")
LISTED = "_modules"  # ends the names of options that are lists
Texts = tuple[str, ...] | None  # values of an option; None: it is not there


@dataclass(frozen=True, slots=True)
class Option:
    """One option as a plan has it. values: as texts; None: it is not to be there. words: as a command line gets it, the
    last of them with its value. anchors: options where a new one belongs, the likeliest first. kept: files beside the
    one that is named stay, since others may inherit them; top: its YAML, where keys go that it does not have. derived:
    options whose values follow from others. document: the file that it names, which is another one then."""

    name: str
    values: Texts
    words: Callable[[tuple[str, ...]], tuple[str, ...]]
    anchors: Iterable[Setting] = ()
    kept: bool = False
    top: Tree | None = None
    derived: Collection[str] = ()
    document: Document | None = None


def of(reading: Reading, name: str) -> Setting | None:
    """Return the option of this name; of several the last."""
    return Arguments(reading.settings).find(plain(name))


def same(values: Texts, other: Texts) -> bool:
    """Tell whether values are the same, whatever the letters of a switch and the digits of a number; a switch may have
    no value, and a key that is null has none."""
    if values is None or other is None:
        return values is other
    if len(values) != len(other):
        return (*values, *other) in (("true",), ("null",))
    return all(map(_alike, values, other))


def _alike(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one.lower() == other.lower()


def put(progress: Progress, option: Option) -> Progress:
    """Write one option where it stands, or beside others where it does not, or say that it cannot be."""
    draft, name = progress.draft, plain(option.name)
    before, setting = draft.meaning, of(draft.reading, name)
    values, free = option.values, {name, *option.derived}
    if setting is not None and option.kept and setting.place.file != draft.reading.file:
        setting = None
    if setting is not None and values is not None and setting.texts:
        values = tuple(_like(setting.texts[0], each) for each in values)

    def rest(meaning: Meaning) -> Meaning:
        kept = meaning.less(free)
        return kept if option.document is None else kept.configured(option.document, None)

    def right(after: Meaning) -> bool:
        return rest(after) == rest(before) and all(same(run.says(name), values) for run in (after, *after.runs))

    after = draft.tried(_added(draft, option) if setting is None else _ways(draft, setting, option, values), right)
    was, now = None if setting is None else setting.text, None if values is None else " ".join(values)
    if after is None:
        why = "to write it there would change something else as well" if setting else NO_PLACE
        place = None if setting is None else setting.place
        return progress.lacking(Unplaced(setting.spelled if setting else option.name, now, why, place))
    there = setting or of(after.reading, name)
    assert there is not None, "is what was tried"
    return progress.went(after, Change(there.spelled, was, now, there.place))


def _like(old: str, new: str) -> str:
    """Return a switch in the letters of the one that stands there."""
    if new.lower() in ("true", "false") and old[:1].isalpha():
        return new.capitalize() if old[0].isupper() else new.lower()
    return new


def _ways(draft: Draft, setting: Setting, option: Option, values: Texts) -> Iterator[tuple[Edit, ...]]:
    """Yield ways to give an option that is there other values, or to take it away."""
    tree = draft.reading.tree_at(setting.place)
    if tree is not None:
        path = trees.path_at(tree, setting.place) or ()
        yield from trees.removed(tree, path) if values is None else trees.changed(tree, path, data(option.name, values))
        return
    yield from together([_in_words(draft, each, option, values) for each in alike(draft.reading, setting)])


def _in_words(draft: Draft, setting: Setting, option: Option, values: Texts) -> Iterator[tuple[Edit, ...]]:
    if values is None:
        yield from words.removed(setting, draft.texts)
    elif not setting.values:
        yield from _behind(draft, setting, values)
    else:
        text = option.words(values)[-1].removeprefix(f"{option.name}=")
        if len(setting.values) == 1 and (len(values) == 1 or setting.joined):
            yield from one_value(draft, setting, text)
            yield from behind_equals(setting, sh(text), draft)
        else:
            yield from all_values(draft, setting, values)


def _behind(draft: Draft, setting: Setting, values: Sequence[str]) -> Iterator[tuple[Edit, ...]]:
    """Yield values behind a switch that has none."""
    text = draft.texts.get(setting.place.file)
    if text is not None:
        yield (Edit(text.place(setting.place.end, setting.place.end), f" {' '.join(map(sh, values))}"),)


def _added(draft: Draft, option: Option) -> Iterator[tuple[Edit, ...]]:
    """Yield ways to say an option that is not there."""
    values = option.values or ()
    if option.top is not None:
        path = tuple(option.name.split("."))
        yield from inserted(option.top, path, data(option.name, values))
        return
    for anchor in option.anchors:
        yield from together([_after(draft, each, option, values) for each in alike(draft.reading, anchor)])


def _after(draft: Draft, anchor: Setting, option: Option, values: tuple[str, ...]) -> Iterator[tuple[Edit, ...]]:
    tree = draft.reading.tree_at(anchor.place)
    if tree is None:
        yield from words.added(anchor, option.words(values), draft.texts)
    elif path := trees.path_at(tree, anchor.place):
        yield from trees.inserted(tree, path[:-1], option.name, data(option.name, values), str(path[-1]))


def data(name: str, values: tuple[str, ...]) -> Any:
    """Return the values of an option as YAML has them."""
    typed = [_typed(each) for each in values]
    if len(typed) > 1 or name.endswith(LISTED):
        return typed
    return typed[0] if typed else True


def _typed(text: str) -> bool | int | float | str | None:
    if text.lower() in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def off(values: Texts) -> bool:
    """Tell whether values switch something off."""
    return values is None or (len(values) == 1 and (values[0].lower() in _OFF or _alike(values[0], "0")))
