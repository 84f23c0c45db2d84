"""What variables and words hold: runs of characters with the bytes where they stand, and holes that nobody knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from symconfig.existing.launch.reading import Piece, Word
from symconfig.existing.launch.text import Place

# A name that says that the variable holds options, and not the value of one.
_OVERRIDE = re.compile(r"(\+\+|\+)?[A-Za-z_]\w*(\.[\w\-/@]+)+=")
_OPTIONS = re.compile(r"ARG|OPT|FLAG|EXTRA|CMD|PARAM|CONFIG$", re.IGNORECASE)
_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$|-\d+(\.\d*)?[eE][-+]?\d+$")


@dataclass(frozen=True, slots=True)
class Part:
    """A run of characters of a value; if `unknown` is set, one of unknown characters, for that reason.

    Args:
        place, variables: as of a Piece.
        loose: whether it results from an unquoted expansion, so that it is split into words where it is used.
        written: where it stands as source (`$TP` or `8`), in the innermost text that holds it as a word.
        brings: options that an unknown part may contain as words; None: any.
    """

    text: str
    place: Place | None = None
    variables: tuple[str, ...] = ()
    unknown: str | None = None
    loose: bool = False
    written: Place | None = None
    brings: tuple[str, ...] | None = None

    def cut(self, start: int, end: int) -> Part:
        """Return the characters [start, end) as a part, with its place adapted; the part itself if these are all.

        `written` follows only if it is the same place.
        """
        if (start, end) == (0, len(self.text)):
            return self
        text = self.text[start:end]
        if self.place is None:
            return replace(self, text=text)
        place = inner(self.place, self.text, start, end)
        return replace(self, text=text, place=place, written=place if self.written == self.place else self.written)


Parts: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """One word after its expansions, as parts. place: where the whole word is written, as of a Word."""

    parts: Parts
    place: Place

    @property
    def text(self) -> str:
        return text_of(self.parts)

    @property
    def unknown(self) -> str | None:
        return unknown_of(self.parts)

    @property
    def several(self) -> bool:
        """Return whether the word is unknown and unquoted as a whole, so that it may be any number of words."""
        return bool(self.parts) and all(part.unknown and part.loose for part in self.parts)

    @property
    def brings(self) -> tuple[str, ...] | None:
        """Return the options that unknown parts may contain as words, each once; None if they may be any."""
        known = [part.brings for part in self.parts if part.unknown]
        if any(each is None for each in known):
            return None
        return tuple(dict.fromkeys(name for each in known for name in each or ()))

    def word(self) -> Word:
        pieces = (Piece(part.text, part.place, part.variables) for part in joined(self.parts))
        return Word(tuple(pieces), self.place, self.unknown)

    def cut(self, start: int, end: int | None = None) -> Field:
        return Field(cut(self.parts, start, end), self.place)


@dataclass(frozen=True, slots=True)
class Array:
    """An indexed array, or an associative one if `keyed`: fields by index or key, in order."""

    items: Mapping[int | str, Field]
    keyed: bool = False


# None: known to be unset. A name that is nowhere in a state's variables may be set by the environment.
Value: TypeAlias = Parts | Array | None


def inner(place: Place, text: str, start: int, end: int) -> Place:
    """Return the place of the characters [start, end) of the text that stands literally at `place`."""
    before = text[:start]
    first = place.start + len(before.encode())
    line = place.line + before.count("\n")
    column = place.column + start if line == place.line else start - before.rfind("\n")
    return Place(place.file, first, first + len(text[start:end].encode()), line, column)


def cover(places: Iterable[Place | None]) -> Place | None:
    """Return the place from the first start to the last end of these places; None is ignored.

    None if there is none, or they are in several files.
    """
    known = [place for place in places if place is not None]
    if not known or len({place.file for place in known}) > 1:
        return None
    first, last = min(known, key=lambda place: place.start), max(known, key=lambda place: place.end)
    return replace(first, end=last.end)


def text_of(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts)


def unknown_of(parts: Iterable[Part]) -> str | None:
    return next((part.unknown for part in parts if part.unknown), None)


def cut(parts: Sequence[Part], start: int, end: int | None = None) -> Parts:
    """Return the characters [start, end) of a value, up to its end for None, with their places.

    Unknown parts, which have no characters, are kept from `start` to `end`, both included.
    """
    kept, done = [], 0
    end = sum(len(part.text) for part in parts) if end is None else end
    for part in parts:
        first, last = max(start - done, 0), min(end - done, len(part.text))
        if (part.unknown and start <= done <= end) or first < last:
            kept.append(part.cut(first, last) if not part.unknown else part)
        done += len(part.text)
    return tuple(kept)


def plain(text: str, *variables: str, place: Place | None = None) -> Parts:
    """Return a known text that stands literally in no file."""
    return (Part(text, None, variables, written=place),)


def hole(
    why: str, place: Place | None, *variables: str, loose: bool = False, brings: tuple[str, ...] | None = None
) -> Part:
    return Part("", None, variables, unknown=why, loose=loose, written=place, brings=brings)


def options_of(words: Iterable[Field]) -> tuple[str, ...] | None:
    """Return the options among words, and those that unknown words bring, by name, each once; None if any may be."""
    options: dict[str, None] = {}
    for word in words:
        if word.several and word.brings is None:
            return None
        options |= dict.fromkeys(
            word.brings or () if word.several else ((word.text.partition("=")[0],) if opens(word.text) else ())
        )
    return tuple(options)


def opens(word: str) -> bool:
    """Return whether a word is an option or an override `a.b=c`."""
    return is_option(word) or _OVERRIDE.match(word) is not None


def holds_options(name: str) -> bool:
    """Return whether a variable's name suggests that it holds options, as ARGS or FLAGS do."""
    return _OPTIONS.search(name) is not None


def is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.match(word) and word != "--"


def through(parts: Parts, name: str, place: Place, *, loose: bool) -> Parts:
    """Return a value as expanded from `$name`: with the name put before its variables, and `loose` as given.

    `written` becomes `place`, but stays in a value with blanks.
    """
    several = any(character.isspace() for part in parts for character in part.text)
    return tuple(
        replace(
            part,
            variables=(name, *part.variables),
            loose=loose,
            written=part.written if several and part.written else place,
        )
        for part in parts
    )


def joined(parts: Parts) -> Iterator[Part]:
    """Yield the parts with text, adjacent ones joined if they are adjacent in the file and have the same variables."""
    last: Part | None = None
    for part in (part for part in parts if part.text):
        here, there = last.place if last is not None else None, part.place
        adjacent = here is not None and there is not None and (here.file, here.end) == (there.file, there.start)
        alike = last is not None and last.variables == part.variables
        if last and here and there and adjacent and alike:
            last = replace(last, text=last.text + part.text, place=replace(here, end=there.end))
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last


def fields(parts: Iterable[Part | None], ifs: str) -> list[Parts]:
    """Return the parts split into words: loose, known ones at the characters of `ifs`, and all at None.

    Blanks in `ifs` only separate; between two other separators is an empty word.
    """
    groups: list[list[Part]] = []
    open_: list[Part] | None = None
    blank = "".join(character for character in ifs if character in " \t\n")
    for part in parts:
        if part is None:
            if open_ is not None:
                groups.append(open_)
            open_ = None
            continue
        if not part.loose or part.unknown:
            open_ = [*(open_ or ()), part]
            continue
        start = 0
        for index, character in enumerate((*part.text, None)):
            if character is not None and character not in ifs:
                continue
            if index > start:
                open_ = [*(open_ or ()), part.cut(start, index)]
            if character is not None:
                # Blanks only separate; any other separator also ends an empty field.
                if open_ is not None:
                    groups.append(open_)
                elif character not in blank:
                    groups.append([Part("", written=part.written)])
                open_ = None
            start = index + 1
    if open_ is not None:
        groups.append(open_)
    return [tuple(each) for each in groups]
