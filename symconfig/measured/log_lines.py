"""Lines of a log file as a stream: gzip or plain, colours and launchers' prefixes taken away, any length, any bytes."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from symconfig.errors import InputError, Problem

LONGEST = 1 << 16  # bytes of a line that are read at a time: longer ones come in pieces
_HEAD = 4096  # bytes that are looked at to tell text from other files
_GZIP = b"\x1f\x8b"
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# srun -l "12: ", torchrun "[rank3]:" and "[default3]:", mpirun "[1,3]<stdout>:"; pdsh and others a host "node-7: ".
_RANK = re.compile(r"\s*(?:\[(?:rank|default)(\d+)\]:?|\[\d+,(\d+)\]<std\w+>:?|(\d+):)\s?")
_HOST = re.compile(r"\s*(?![\w.]*(?:Error|Exception|Interrupt|Exit):)[A-Za-z][\w.-]*:\s(?=\s*[\[\w])")


class LogLines:
    """Iterates over (line number, bytes of the line). What is wrong with the file is known afterwards.

    broken: why the archive could not be read to its end. cut: the last line has no end. Raises InputError for a
    file that cannot be opened, is empty, or is not text.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.broken = ""
        self.cut = False
        self.count = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        try:
            with self.path.open("rb") as raw:
                packed = raw.read(2) == _GZIP
                raw.seek(0)
                if not packed:
                    yield from self._lines(raw)
                    return
                with gzip.open(raw) as unpacked:
                    yield from self._lines(unpacked)  # type: ignore[arg-type]
        except OSError as error:
            if isinstance(error, gzip.BadGzipFile):
                self._stopped("the gzip archive is damaged")
                return
            raise InputError(Problem(f"cannot be read: {error.strerror or error}", file=str(self.path))) from None

    def _lines(self, stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        last, number = b"\n", 1
        try:
            while piece := stream.readline(LONGEST):
                if not self.count:
                    self._text(piece)
                self.count = number
                yield number, piece
                number += piece.endswith(b"\n")
                last = piece
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self._stopped("the gzip archive is cut off or damaged")
        if not self.count and not self.broken:
            raise InputError(Problem("is empty", file=str(self.path), need="a training log"))
        self.cut = not last.endswith((b"\n", b"\r"))

    def _text(self, piece: bytes) -> None:
        head = piece[:_HEAD]
        control = sum(byte < 32 and byte not in b"\t\n\r\x08\x0b\x0c\x1b" for byte in head)
        if control > len(head) // 10:
            raise InputError(Problem("is a binary file", file=str(self.path), line=1, need="a training log as text"))

    def _stopped(self, why: str) -> None:
        if not self.count:
            raise InputError(Problem(f"{why}, nothing of it can be read", file=str(self.path)))
        self.broken = why


def text(piece: bytes) -> str:
    """A line for people: wrong UTF-8 replaced, colours and NULs removed."""
    line = piece.decode("utf-8", errors="replace")
    return (_COLOUR.sub("", line) if "\x1b" in line else line).replace("\0", "")


def prefix(line: str) -> tuple[int | None, str]:
    """The rank that a launcher's prefix names, and the line without prefixes."""
    rank = None
    for _ in range(3):
        if match := _RANK.match(line):
            rank = int(next(group for group in match.groups() if group)[:9])
        else:
            match = _HOST.match(line)
        if not match:
            break
        line = line[match.end() :]
    return rank, line
