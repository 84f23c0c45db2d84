"""A file that was read: plain data plus the line and column of every key path, for error messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from symconfig.errors import InputError, Problem, Right
from symconfig.resources import content

KeyPath: TypeAlias = tuple[str | int, ...]
MAX_DEPTH = 100
MAX_BYTES = 8 * 1024 * 1024
MAX_PROBLEMS = 100  # nobody reads more, and finding a hint for each of a hundred thousand takes minutes


@dataclass(frozen=True, slots=True)
class Place:
    """Line and column, both counted from one."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Document:
    """Parsed data of a file with the places of its keys and values, for error messages.

    data: dict, list, str, int, float, bool, None. keys, values: place by path. unread: problems of values that could
    not be read, which are None in the data.
    """

    data: Any
    file: str
    keys: Mapping[KeyPath, Place] = field(default_factory=dict)
    values: Mapping[KeyPath, Place] = field(default_factory=dict)
    unread: tuple[Problem, ...] = ()

    def place(self, path: KeyPath, *, of_key: bool = False) -> Place | None:
        """Return the place of the path, else of the nearest container around it; None if no place is known.

        of_key: a key's place goes before its value's; by default the value's goes first.
        """
        for length in range(len(path), -1, -1):
            first, second = (self.keys, self.values) if of_key else (self.values, self.keys)
            place = first.get(path[:length]) or second.get(path[:length])
            if place is not None:
                return place
        return None

    def problem(
        self,
        what: str,
        path: KeyPath = (),
        *,
        of_key: bool = False,
        got: str | None = None,
        need: str | None = None,
        hint: str | None = None,
    ) -> Problem:
        """Return, without recording it, a Problem with this file, the place of the path (`place`) and the parts given.

        field is the path as text, None for an empty one; line and column are None if no place is known.
        """
        place = self.place(path, of_key=of_key)
        return Problem(
            what=what,
            file=self.file,
            line=place.line if place else None,
            column=place.column if place else None,
            field=dotted(path) or None,
            got=got,
            need=need,
            hint=hint,
        )


class ProblemParts(Right, total=False):
    """Optional parts of a Problem, for those who pass it on to `Document.problem`."""

    got: str | None


def dotted(path: KeyPath) -> str:
    """Return a path as text of at most 200 characters: `experts.num_experts`, `levels[2].size`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return shorten(text, 200)


def shorten(value: object, limit: int = 60) -> str:
    """Return a value as printable text of at most `limit` characters; a longer one is cut and ends in "…".

    Values other than text are shown by their repr. Characters that cannot be printed become "?".
    """
    text = value if isinstance(value, str) else repr(value)
    text = "".join(ch if ch.isprintable() else "?" for ch in text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def called(word: str, known: Iterable[str]) -> str | None:
    """Return the first known name equal to the word but for case; None if there is none."""
    return next((name for name in known if name.lower() == word.lower()), None)


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Return the file's text, decoded as UTF-8, without a byte order mark.

    limit: the largest size in bytes. Raises InputError for a file that is missing, not regular, may not be read, is
    larger, or is not UTF-8 (with the line).
    """
    file, raw = str(path), content(path, limit)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError("the file is not UTF-8 text", file=file, line=line) from None
