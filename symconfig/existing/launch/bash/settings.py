"""A program's words as options with their values, as argparse would part them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from symconfig.existing.launch.bash.values import Field, cover, holds_options, is_option
from symconfig.existing.launch.reading import Hides, Setting, Unread, Word
from symconfig.existing.launch.text import Place

_BRANCHES = re.compile(r"is set (under a condition|in a loop)")


@dataclass(slots=True)
class Arguments:
    """settings: words that belong to no option (overrides, a configuration's file) are the values of one without a
    name, the first. unread: words that may be any number of options. possible: options that such a word may be."""

    settings: list[Setting] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    possible: list[Setting] = field(default_factory=list)


def arguments(words: Sequence[Field], source: Callable[[Place], str]) -> Arguments:
    """Return the words after the program. source: what stands at a place."""
    made = Arguments()
    name: Field | None = None
    values: list[Field] = []
    loose: list[Field] = []

    def close() -> None:
        if name is not None:
            made.settings.append(_setting(name, values))

    for word in words:
        text = word.text
        if word.several and (word.brings != () if name is None or values else may_be_options(word)):
            made.unread.append(dark(word, source))
            made.possible += [_possible(name, word) for name in word.brings or ()]
        elif is_option(text):
            close()
            name, values = word, []
            if "=" in text:
                made.settings.append(_joined(word, text.index("="), source))
                name = None
        elif name is None:
            loose.append(word)
        else:
            values.append(word)
    close()
    if loose:
        place = cover(word.place for word in loose) or loose[0].place
        made.settings.insert(0, Setting("", "", tuple(word.word() for word in loose), place))
    return made


def may_be_options(word: Field) -> bool:
    """Tell whether a word that is not known is likely to be options, by its name or as a branch may have added it."""
    if word.brings is not None:
        return bool(word.brings)
    names = [part.variables[-1] for part in word.parts if part.variables]
    return any(map(holds_options, names)) or any(_BRANCHES.match(part.unknown or "") for part in word.parts)


def dark(word: Field, source: Callable[[Place], str]) -> Unread:
    """Make a word that may be any number of options."""
    place = next((part.written for part in word.parts if part.written is not None), word.place)
    hides = Hides.OPTIONS if word.brings is None else Hides.NAMED
    what = " ".join(source(place).split())[:80] or word.text
    return Unread(place, what, word.unknown or "is not known", hides, options=True)


def _possible(name: str, word: Field) -> Setting:
    """Make an option that a word may be."""
    place = next((part.written for part in word.parts if part.written is not None), word.place)
    why = word.unknown or "is not known"
    return Setting(name, name, (Word((), word.place, why),), place)


def _setting(name: Field, values: Sequence[Field]) -> Setting:
    last = values[-1].place if values else name.place
    whole = cover((name.place, last))
    ordered = whole is not None and name.place.start <= last.start
    place = whole if ordered and whole is not None else name.place
    return Setting(name.text, name.text, tuple(value.word() for value in values), place)


def _joined(word: Field, equals: int, source: Callable[[Place], str]) -> Setting:
    """Split `--x=1`."""
    spelled = word.text[:equals]
    parts = word.cut(equals + 1).parts
    written = source(word.place)
    if written.startswith(spelled + "="):
        size = len((spelled + "=").encode())
        place = Place(
            word.place.file,
            word.place.start + size,
            word.place.end,
            word.place.line,
            word.place.column + len(spelled) + 1,
        )
    else:
        place = cover(part.place for part in parts) or word.place
    value = Field(parts, place).word()
    return Setting(spelled, spelled, (value,), word.place, joined=True)
