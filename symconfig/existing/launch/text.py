"""A file as bytes: how it is opened, if it may be, places in it, and edits of it.

Line ends, encoding and all around an edit stay as they are.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from symconfig.errors import InputError, Problem
from symconfig.format import learn
from symconfig.resources import may_read, missing, opened


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


def cover(places: Iterable[Place | None]) -> Place | None:
    """Return the place from the first start to the last end; None without places or if they are in several files."""
    known = [place for place in places if place is not None]
    if not known or len({place.file for place in known}) > 1:
        return None
    first, last = min(known, key=lambda place: place.start), max(known, key=lambda place: place.end)
    return replace(first, end=last.end)


def problem_at(place: Place | None, what: str, file: str | None = None, **words: Any) -> Problem:
    """Return a problem at a place, or about `file` if the place is None. words: as of `Place.problem`."""
    return Problem(what, file, **words) if place is None else place.problem(what, **words)


@dataclass(frozen=True, slots=True)
class Text:
    """One file: its name in messages, and its bytes. made: whether the script that is read writes it when it runs."""

    file: str
    data: bytes
    made: bool = False
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)  # of lines
    _further: tuple[int, ...] = field(init=False, repr=False, compare=False)  # bytes of a character behind its first

    def __post_init__(self) -> None:
        object.__setattr__(self, "_starts", (0, *(match.end() for match in re.finditer(rb"\n", self.data))))
        further = tuple(match.start() for match in re.finditer(rb"[\x80-\xbf]", self.data))
        object.__setattr__(self, "_further", further)

    def place(self, start: int, end: int) -> Place:
        """Return the place of the bytes [start, end), with line and column in characters (from 1) of `start`."""
        line = bisect_right(self._starts, start)
        first = self._starts[line - 1]
        further = bisect_left(self._further, start) - bisect_left(self._further, first)
        return Place(self.file, start, end, line, start - first - further + 1)

    def at(self, place: Place) -> str:
        """Return the text at a place; malformed bytes are replaced."""
        return self.data[place.start : place.end].decode("utf-8", "replace")

    def between(self, start: int, end: int) -> Place:
        """Return the place of the characters [start, end)."""
        before = range(len(self._further))  # characters, of each of them
        wider = (bisect_right(before, index, key=lambda at: self._further[at] - at) for index in (start, end))
        return self.place(*map(sum, zip((start, end), wider, strict=True)))


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


LIMIT_BYTES = 1 << 20  # a launch script has thousands of bytes; a parse of a mebibyte takes seconds

_NONE: Mapping[str, bytes] = MappingProxyType({})
_INSTEAD: ContextVar[Mapping[str, bytes]] = ContextVar("bytes that stand for a file's own", default=_NONE)


@contextmanager
def instead(files: Mapping[str, bytes]) -> Iterator[None]:
    """Replace the contents of files (new bytes by name) inside the block, as if they had been edited."""
    token = _INSTEAD.set(files)
    try:
        yield
    finally:
        _INSTEAD.reset(token)


_ROOT: ContextVar[Path | None] = ContextVar("the folder outside of which nothing is read", default=None)
ROOT_OPTION = "--root"


@contextmanager
def below(root: str | Path | None) -> Iterator[None]:
    """Allow reading only files below this folder inside the block; None: as before. Raises InputError if it is none."""
    if root is not None and not Path(root).is_dir():
        raise InputError("there is no such folder", field=ROOT_OPTION, got=str(root))
    token = _ROOT.set(_ROOT.get() if root is None else Path(root).resolve())
    try:
        yield
    finally:
        _ROOT.reset(token)


def readable(root: Path) -> Path:
    """Return the folder below which files may be read: the one set by `below`, else `root`."""
    return _ROOT.get() or root.resolve()


def open_text(path: Path, *, root: Path) -> Text:
    """Return the file's contents, UTF-8 without NUL of at most 1 MiB, and learn its secrets for masking.

    Inside `instead` the contents given there count. Raises InputError for anything else, and for a file outside of
    `root` (or of the folder set by `below`), also through a link.
    """
    data = _bytes(path, root)
    data = _INSTEAD.get().get(str(path), data)
    if b"\0" in data:
        raise InputError("is a binary file: it has a NUL byte", file=str(path), need="a text file")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        got, hint = f"byte 0x{data[error.start]:02x}", "save it as UTF-8"
        raise InputError("is no text in UTF-8", file=str(path), line=line, got=got, hint=hint) from None
    learn(data.decode())
    return Text(str(path), data)


def _bytes(path: Path, root: Path) -> bytes:
    """Return the file's bytes. Raises InputError if it is absent, outside of `readable(root)`, no file or too large."""
    try:
        if not may_read(path):
            raise FileNotFoundError
        real = path.resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        listed = "\0" not in str(path) and path.parent.resolve().is_relative_to(readable(root))
        raise InputError([missing(path) if listed else Problem("there is no such file", file=str(path))]) from None
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or "a link leads back to itself"
        raise InputError(f"cannot be read ({why})", file=str(path)) from None
    inside = readable(root)
    if not real.is_relative_to(inside):
        got = str(real) if real != path else None
        hint = f"{ROOT_OPTION} DIR, a folder that holds both"
        raise InputError(f"lies outside of {inside}", file=str(path), got=got, hint=hint)
    try:
        with opened(real) as stream:
            data, size = stream.read(LIMIT_BYTES + 1), os.fstat(stream.fileno()).st_size
    except InputError as error:
        raise InputError(error.problems[0].what, file=str(path)) from None
    if len(data) > LIMIT_BYTES:
        need = f"at most {LIMIT_BYTES:,}"
        raise InputError("is too large for a launch configuration", file=str(path), got=f"{size:,} bytes", need=need)
    return data
