"""Entries of a configuration -> Megatron-LM's options, and what has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from symconfig.descriptor.document import shorten
from symconfig.existing.launch.dialects.entry import Entry
from symconfig.existing.launch.dialects.fields import (
    AS_WRITTEN,
    ASIDE,
    CHOICES,
    NEGATED,
    RENAMED,
    SPECIAL,
    WEIGHTY,
    Meaning,
    Neighbours,
)
from symconfig.existing.launch.dialects.options import settings, table_with
from symconfig.existing.launch.reading import Hides, Setting, Unread

Path = tuple[str, ...]


def by_path(entries: Iterable[Entry]) -> dict[Path, Entry]:
    """Sort entries by path: the last one of a path wins, and one that is removed takes all below it away."""
    last: dict[Path, Entry] = {}
    sections: set[Path] = set()
    for entry in entries:
        if entry.path in sections:
            for path in [path for path in last if path[: len(entry.path)] == entry.path]:
                del last[path]
            sections.discard(entry.path)
        if entry.removed:
            last.pop(entry.path, None)
        else:
            last[entry.path] = entry
            sections.update(entry.path[:length] for length in range(1, len(entry.path)))
    return last


def translated(entries: Mapping[Path, Entry]) -> tuple[tuple[Setting, ...], tuple[Unread, ...]]:
    """Return the options that say what the entries say, in their order, and what says nothing to Megatron-LM.

    Only what changes the model or what lies in memory is unread as something that matters.
    """
    settings: list[Setting] = []
    spoken: set[tuple[str, ...]] = set()
    unread: list[Unread] = []
    weighty: set[Path | None] = set()  # each section is said once
    for path, entry in entries.items():
        aside = any(part in ASIDE for part in path[:-1])  # a section that says nothing of the computation
        if aside or ((entry.value is None or entry.value == "" or entry.value == []) and not entry.unknown):
            continue
        try:
            for setting in _settings(entry, entries):
                if _words(setting) not in spoken:  # two sections often say the same, by a reference to each other
                    settings.append(setting)
                spoken.add(_words(setting))
        except KeyError:
            section = next((path[: index + 1] for index, part in enumerate(path) if part in WEIGHTY), None)
            if entry.value is not False and (section is None or section not in weighty):
                weighty.add(section)
                unread.append(_unread(entry, "has no option of Megatron-LM that says it", section is not None))
        except ValueError as error:
            unread.append(_unread(entry, str(error), True))
    return tuple(settings), tuple(unread)


def _words(setting: Setting) -> tuple[str, ...]:
    return (setting.name, *setting.texts)


def _unread(entry: Entry, why: str, matters: bool) -> Unread:
    hides = Hides.OPTIONS if matters else Hides.NOTHING
    return Unread(entry.place, shorten(f"{entry.spelled}: {' '.join(word.text for word in entry.words)}"), why, hides)


def _settings(entry: Entry, entries: Mapping[Path, Entry]) -> Iterator[Setting]:
    """Yield the settings of an entry. Raises KeyError where it has no option, ValueError where its value is not
    understood.
    """

    def neighbour(key: str) -> Any:
        other = entries.get((*entry.path[:-1], key))
        return None if other is None else other.value

    for dest, value in _meanings(entry, neighbour):
        if value is AS_WRITTEN:
            yield from settings(dest, entry.value, entry, entry.words)
        else:
            yield from settings(dest, value, entry)


def _meanings(entry: Entry, neighbours: Neighbours) -> Iterable[Meaning]:
    tail = _tail(SPECIAL, entry.path) or _tail(CHOICES, entry.path) or _tail(NEGATED, entry.path)
    renamed = _tail(RENAMED, entry.path)
    if tail is None or (renamed is not None and len(renamed) > len(tail)):
        dest = RENAMED[renamed] if renamed is not None else entry.path[-1]
        return ((dest, AS_WRITTEN),) if dest else ()
    if entry.unknown:
        if table_with(entry.path[-1]) is not None:
            return ((entry.path[-1], AS_WRITTEN),)
        raise ValueError(f"its value {entry.unknown}")
    if tail in SPECIAL:
        return SPECIAL[tail](entry, neighbours)
    if tail in NEGATED:
        return ((NEGATED[tail], not entry.value),)
    text = "true" if entry.value is True else "false" if entry.value is False else str(entry.value).lower()
    if text not in CHOICES[tail]:
        raise ValueError(f"is none of {', '.join(CHOICES[tail])}")
    return CHOICES[tail][text]


def _tail(table: Mapping[str, object], path: Path) -> str | None:
    """Return the longest end of the path that the table has: at most a section and a key."""
    ends = (".".join(path[-length:]) for length in (2, 1))
    return next((end for end in ends if end in table), None)
