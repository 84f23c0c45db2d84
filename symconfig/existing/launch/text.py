"""A file as bytes: places in it, and edits of it. Line ends, encoding and all around an edit stay as they are."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from symconfig.errors import InputError, Problem


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Bytes [start, end) of a file, with line and column (in characters, from 1) of the start."""

    file: str
    start: int
    end: int
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def inner(self, text: str, start: int, end: int) -> Place:
        """Return the place of the characters [start, end) of the text that stands literally here."""
        before = text[:start]
        first, line = self.start + len(before.encode()), self.line + before.count("\n")
        column = self.column + start if line == self.line else start - before.rfind("\n")
        return Place(self.file, first, first + len(text[start:end].encode()), line, column)

    def problem(self, what: str, **words: Any) -> Problem:
        """Return a problem at this place. words: field, got, need and hint."""
        return Problem(what, self.file, self.line or None, self.column or None, **words)


def problem_at(place: Place | None, what: str, file: str | None = None, **words: Any) -> Problem:
    """Return a problem at a place, or about `file` if the place is None. words: as of `Place.problem`."""
    return Problem(what, file, **words) if place is None else place.problem(what, **words)


@dataclass(frozen=True, slots=True)
class Text:
    """One file: its name in messages, and its bytes."""

    file: str
    data: bytes
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)  # of lines
    _further: tuple[int, ...] = field(init=False, repr=False, compare=False)  # bytes of a character behind its first
    _wider: tuple[int, ...] = field(init=False, repr=False, compare=False)  # the characters before each of these

    def __post_init__(self) -> None:
        object.__setattr__(self, "_starts", (0, *(match.end() for match in re.finditer(rb"\n", self.data))))
        further = [match.start() for match in re.finditer(rb"[\x80-\xbf]", self.data)]
        object.__setattr__(self, "_further", tuple(further))
        object.__setattr__(self, "_wider", tuple(at - before for before, at in enumerate(further)))

    def place(self, start: int, end: int) -> Place:
        """Return the place of the bytes [start, end), with line and column in characters (from 1) of `start`."""
        line = bisect_right(self._starts, start)
        first = self._starts[line - 1]
        further = bisect_left(self._further, start) - bisect_left(self._further, first)
        return Place(self.file, start, end, line, start - first - further + 1)

    def at(self, place: Place) -> str:
        """Return the text at a place; malformed bytes are replaced."""
        return self.data[place.start : place.end].decode("utf-8", "replace")

    def characters(self) -> str:
        """Return the contents as text. Raises InputError if they are not UTF-8."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            line = self.place(error.start, error.end).line
            raise InputError("the file is not UTF-8 text", file=self.file, line=line) from None

    def between(self, start: int, end: int) -> Place:
        """Return the place of the characters [start, end)."""
        return self.place(*(index + bisect_right(self._wider, index) for index in (start, end)))


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replacement of what is at `place` by `text`: an empty place inserts, an empty text deletes."""

    place: Place
    text: str


def edited(text: Text, edits: Iterable[Edit]) -> bytes:
    """Return the file's bytes with its edits applied. Raises ValueError if two of them overlap."""
    mine = sorted(edit for edit in edits if edit.place.file == text.file)
    parts, done = [], 0
    for edit in mine:
        if edit.place.start < done:
            raise ValueError(f"two edits of {edit.place} overlap")
        parts += [text.data[done : edit.place.start], edit.text.encode()]
        done = edit.place.end
    return b"".join((*parts, text.data[done:]))
