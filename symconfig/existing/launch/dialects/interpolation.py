"""OmegaConf's references such as `${model.hidden_size}`, resolved in the file and from given variables only."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from symconfig.descriptor.document import shorten
from symconfig.descriptor.yaml_strict import plain
from symconfig.existing.launch.dialects.override import Entry
from symconfig.existing.launch.reading import Piece, Word
from symconfig.existing.launch.text import Place

Path = tuple[str, ...]
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_MISSING = "???"  # OmegaConf's mark of a value that must be given
# NeMo-RL, nemo_rl/utils/config.py, registers these.
_FUNCTIONS: dict[str, Callable[[list[int]], int]] = {
    "mul": math.prod,
    "add": sum,
    "max": max,
    "div": lambda numbers: numbers[0] // numbers[1],
}
_MOST_STEPS = 20  # of references that lead to references
_MOST_CHARACTERS = 10_000  # of a text with references in it


def interpolated(entries: Mapping[Path, Entry], variables: Mapping[str, str]) -> dict[Path, Entry]:
    """Return the entries with references to other entries and to given variables replaced.

    A reference that cannot be resolved makes its word unknown.
    """
    resolver = _Resolver(entries, variables)
    return {path: resolver.entry(path) for path in entries}


class _Resolver:
    """Resolver of references that caches each entry's result, so that nested references do not multiply."""

    def __init__(self, entries: Mapping[Path, Entry], variables: Mapping[str, str]) -> None:
        self.entries = entries
        self.variables = variables
        self.done: dict[Path, Entry] = {}
        self.under_way: set[Path] = set()

    def entry(self, path: Path) -> Entry:
        if path not in self.done:
            self.under_way.add(path)
            self.done[path] = self._resolved(self.entries[path])
            self.under_way.discard(path)
        return self.done[path]

    def _resolved(self, entry: Entry) -> Entry:
        """Return the entry with references replaced.

        An entry that is one reference takes the other's value, also a list.
        """
        if not any("${" in word.text or word.text == _MISSING for word in entry.words):
            return entry
        whole = _REFERENCE.fullmatch(entry.words[0].text) if len(entry.words) == 1 else None
        if whole:
            other = self._target(whole[1], entry)
            if isinstance(other, Entry):
                through = (f"${{{whole[1]}}}",)
                words = tuple(_through(word, through, entry.words[0].place) for word in other.words)
                return replace(entry, value=other.value, words=words)
        words = tuple(self._word(word, entry) for word in entry.words)
        value = entry.value if isinstance(entry.value, list) else _value(words[0])
        return replace(entry, value=value, words=words)

    def _word(self, word: Word, entry: Entry) -> Word:
        """Return the word with references replaced, innermost first; unknown if one cannot be resolved."""
        if word.text == _MISSING:
            return Word((), word.place, "must be given on the command line and is not")
        pieces: tuple[Piece, ...] = (Piece(word.text),)
        for _ in range(_MOST_STEPS):  # the innermost first: ${mul:${a},${b}}
            text = "".join(piece.text for piece in pieces)
            match = _REFERENCE.search(text)
            if match is None:
                return Word(pieces, word.place, word.unknown)
            if len(text) > _MOST_CHARACTERS:
                break
            other = self._target(match[1], entry)
            if isinstance(other, Entry):
                if len(other.words) != 1:
                    return Word((), word.place, f"depends on {match[0]}, which is no single value")
                other = _through(other.words[0], (match[0],), word.place)
            if other.unknown:
                return Word((), word.place, other.unknown)
            pieces = (*_part(pieces, 0, match.start()), *other.pieces, *_part(pieces, match.end(), len(text)))
        return Word((), word.place, f"depends on {shorten(word.text)}, which is not worked out")

    def _target(self, reference: str, entry: Entry) -> Entry | Word:
        """Return what a reference stands for: another entry, or a word (of a variable or function, or an unknown
        one).
        """
        kind, colon, rest = reference.partition(":")
        place = entry.words[0].place
        if colon and kind in ("oc.env", "env"):
            name, has_default, default = (part.strip() for part in rest.partition(","))
            if name in self.variables:
                return Word((Piece(self.variables[name], None, (name,)),), place)
            if has_default:
                return Word((Piece(default.strip("'\""), None, (name,), name),), place)
            return Word((), place, f"depends on the environment variable {name}")
        if colon:
            known = _computed(kind, rest)
            if known is not None:
                return Word.of(known, place)
            return Word((), place, f"depends on ${{{shorten(reference)}}}, which is not worked out")
        path = _absolute(reference.strip(), entry.path)
        if path not in self.entries:
            return Word((), place, f"depends on ${{{shorten(reference)}}}, which nothing in this file says")
        if path in self.under_way:
            return Word((), place, f"depends on ${{{shorten(reference)}}}, which leads in a circle")
        if len(self.under_way) > _MOST_STEPS:
            return Word((), place, f"depends on ${{{shorten(reference)}}}, after too many references to references")
        return self.entry(path)


def _value(word: Word) -> object:
    try:
        return word.text if word.unknown else plain(word.text)
    except ValueError:
        return word.text


def _part(pieces: tuple[Piece, ...], start: int, end: int) -> Iterator[Piece]:
    """Yield the pieces of the characters [start, end); a piece that is cut loses its place."""
    position = 0
    for piece in pieces:
        first, last = max(start - position, 0), min(end - position, len(piece.text))
        if first < last:
            whole = last - first == len(piece.text)
            yield piece if whole else replace(piece, text=piece.text[first:last], place=None)
        position += len(piece.text)


def _computed(kind: str, rest: str) -> str | None:
    """Return the result of NeMo-RL's functions (mul, add, max, div) on integers, as text.

    None if it cannot be computed.
    """
    try:
        numbers = [int(part) for part in rest.split(",")]
        return str(_FUNCTIONS[kind](numbers))
    except (KeyError, ValueError, ZeroDivisionError, IndexError):
        return None


def _absolute(reference: str, here: Path) -> Path:
    """Return the path that a reference means: `.x` is a sibling of the entry at `here`, `..x` one level above."""
    up = len(reference) - len(reference.lstrip("."))
    base = here[: len(here) - up] if up else ()
    return (*base, *reference.lstrip(".").split("."))


def _through(word: Word, names: Path, place: Place) -> Word:
    pieces = tuple(replace(piece, variables=(*names, *piece.variables)) for piece in word.pieces)
    return Word(pieces, place, word.unknown)
