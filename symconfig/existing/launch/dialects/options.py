"""Megatron-LM's option for a destination of its parser, with the words that say a value."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from symconfig.existing.launch.dialects.entry import Entry, spoken
from symconfig.existing.launch.reading import Setting, Word
from symconfig.frameworks.megatron.flags import FlagTable, flags, option, versions


@cache
def table_with(dest: str) -> FlagTable | None:
    """Return the newest version's table that has an option for it; a release before what is not released."""
    order = sorted(versions(), key=lambda v: (v != "main", versions().index(v)), reverse=True)
    return next((flags(version) for version in order if dest in _destinations(version)), None)


@cache
def _destinations(version: str) -> frozenset[str]:
    return frozenset(flag.dest for flag in flags(version).flags.values())


def settings(dest: str, value: Any, entry: Entry, words: Sequence[Word] | None = None) -> tuple[Setting, ...]:
    """Return the option that gives `value` to the destination; none where that is what the parser has without it.

    words: as the entry has them; None: `value` is this program's word for it. Raises KeyError where no version has such
    a destination.
    """
    table = table_with(dest)
    if table is None:
        raise KeyError(dest)
    if value is None and not entry.unknown:
        return ()
    try:
        name = option(table, dest, value)
    except KeyError:
        return ()
    flag = table.flags[name]
    # No parser of text reads these, so that 1e6 may stand for a whole number.
    whole = int(value) if flag.type == "int" and isinstance(value, float) and value.is_integer() else value
    if flag.kind != "store":
        dark: tuple[Word, ...] = tuple(word for word in words or () if word.unknown)
    elif words is None or (isinstance(value, list) and not flag.nargs) or whole is not value:
        where = entry.words[0].place if entry.words and words is None else entry.place
        dark = (Word.of(spoken(whole), where),)
    else:
        dark = tuple(words)
    return (Setting(name, entry.spelled, dark, entry.place),)
