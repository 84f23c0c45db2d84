"""What variables of a shell hold, what of it is not known, and the words that it is split into."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from symconfig.existing.launch.reading import Piece, Pieces, Word
from symconfig.existing.launch.text import Place

# A name that says that the variable holds options, and not the value of one.
_OVERRIDE = re.compile(r"(\+\+|\+)?[A-Za-z_]\w*(\.[\w\-/@]+)+=")
_OPTIONS = re.compile(r"ARG|OPT|FLAG|EXTRA|CMD|PARAM|CONFIG$", re.IGNORECASE)
_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$|-\d+(\.\d*)?[eE][-+]?\d+$")


@dataclass(frozen=True, slots=True)
class Array:
    """An indexed array, or an associative one if `keyed`: fields by index or key, in order."""

    items: Mapping[int | str, Word]
    keyed: bool = False


# None: known to be unset. A name that is nowhere in a state's variables may be set by the environment.
Value: TypeAlias = Pieces | Array | None


def cover(places: Iterable[Place | None]) -> Place | None:
    """Return the place from the first start to the last end; None without places or if they are in several files."""
    known = [place for place in places if place is not None]
    if not known or len({place.file for place in known}) > 1:
        return None
    first, last = min(known, key=lambda place: place.start), max(known, key=lambda place: place.end)
    return replace(first, end=last.end)


def plain(text: str, *variables: str, place: Place | None = None) -> Pieces:
    """Return a known text that stands literally in no file."""
    return (Piece(text, None, variables, written=place),)


def hole(
    why: str, place: Place | None, *variables: str, loose: bool = False, brings: tuple[str, ...] | None = None
) -> Piece:
    return Piece("", None, variables, unknown=why, loose=loose, written=place, brings=brings)


def options_of(words: Iterable[Word]) -> tuple[str, ...] | None:
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


def through(parts: Pieces, name: str, place: Place, *, loose: bool) -> Pieces:
    """Return a value as expanded from `$name`, which is put before its variables; `written` becomes `place`."""
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


def fields(parts: Iterable[Piece | None], ifs: str) -> list[Pieces]:
    """Return the parts split into words: loose, known ones at the characters of `ifs`, and all at None.

    Blanks in `ifs` only separate; between two other separators is an empty word.
    """
    groups: list[list[Piece]] = []
    open_: list[Piece] | None = None
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
                    groups.append([Piece("", written=part.written)])
                open_ = None
            start = index + 1
    if open_ is not None:
        groups.append(open_)
    return [tuple(each) for each in groups]
