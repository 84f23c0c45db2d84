"""A file as bytes: places in it, and edits of it. Line ends, encoding and all around an edit stay as they are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Bytes [start, end) of a file, and the line and column (in characters, both from one) of its start."""

    file: str
    start: int
    end: int
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Text:
    """One file: the name under which messages speak of it, and its bytes."""

    file: str
    data: bytes
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        starts = (0, *(index + 1 for index, byte in enumerate(self.data) if byte == 0x0A))
        object.__setattr__(self, "_starts", starts)

    def place(self, start: int, end: int) -> Place:
        """The bytes [start, end)."""
        line = bisect_right(self._starts, start)
        before = self.data[self._starts[line - 1] : start]
        return Place(self.file, start, end, line, len(before.decode("utf-8", "replace")) + 1)

    def at(self, place: Place) -> str:
        """What stands there."""
        return self.data[place.start : place.end].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Put `text` where `place` stands: an empty place inserts, an empty text deletes."""

    place: Place
    text: str


def edited(text: Text, edits: Iterable[Edit]) -> bytes:
    """The file with its edits done. Edits of other files are passed over. Raises ValueError where two overlap."""
    mine = sorted(edit for edit in edits if edit.place.file == text.file)
    parts, done = [], 0
    for edit in mine:
        if edit.place.start < done:
            raise ValueError(f"two edits of {edit.place} overlap")
        parts += [text.data[done : edit.place.start], edit.text.encode()]
        done = edit.place.end
    return b"".join((*parts, text.data[done:]))
