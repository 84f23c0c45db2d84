"""Lines of a log file as a stream: gzip or plain, colours and launchers' prefixes taken away, any length, any bytes."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path

from symconfig.errors import InputError
from symconfig.resources import opened

BLOCK = 1 << 18  # bytes read at a time
LONGEST = 1 << 16  # bytes of a line: what is longer comes in pieces
_HEAD = 4096  # bytes that are looked at to tell text from other files
_GZIP = b"\x1f\x8b"
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# srun -l "12: ", torchrun "[rank3]:" and "[default3]:", mpirun "[1,3]<stdout>:"; pdsh and others a host "node-7: ".
_RANK = re.compile(r"\s*(?:\[(?:rank|default)(\d+)\]:?|\[\d+,(\d+)\]<std\w+>:?|(\d{1,7}):(?=\s))\s?")
_HOST = re.compile(r"\s*(?![\w.]*(?:Error|Exception|Interrupt|Exit):)[A-Za-z][\w.-]*:\s(?=\s*[\[\w])")


class LogLines:
    """An iterator over (line number, bytes) of the lines that hold one of `words`, and of all lines while `everything`.

    cut: the line just given, the last one, has no end. broken: why the archive could not be read to its end; known
    afterwards, as `count`, the lines there are. Raises InputError for a file that cannot be opened, is empty, or is
    not text.
    """

    def __init__(self, path: Path, words: Sequence[bytes], everything: Callable[[], bool]) -> None:
        self.path, self.words, self.everything = path, words, everything
        self.broken = ""
        self.cut = False
        self.count = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield (line number, bytes) of the wanted lines of a plain or gzip file.

        Raises InputError if it cannot be read.
        """
        try:
            with opened(self.path) as raw:
                packed = raw.read(2) == _GZIP
                raw.seek(0)
                if packed:
                    with gzip.open(raw) as unpacked:
                        yield from self._lines(self._blocks(unpacked))
                else:
                    yield from self._lines(self._blocks(raw))
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", file=str(self.path)) from None

    def _blocks(self, stream: BufferedIOBase) -> Iterator[bytes]:
        try:
            while block := stream.read1(BLOCK):
                yield block
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.broken = "the gzip archive is cut off or damaged"

    def _lines(self, blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield the wanted lines with their numbers, counting lines and setting `cut` if the last has no end.

        Lines over LONGEST bytes come in pieces under one number. Raises InputError for an empty or binary file.
        """
        rest = b""
        for block in blocks:
            if not self.count:
                head = block[:_HEAD]
                control = sum(byte < 32 and byte not in b"\t\n\r\x08\x0b\x0c\x1b" for byte in head)
                if control > len(head) // 20:
                    raise InputError("is a binary file", file=str(self.path), line=1, need="a training log as text")
                self.count = 1
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            if len(rest) > LONGEST:  # a line so long comes in pieces, under one number
                lines.append(rest)
                rest = b""
                yield from self._wanted(lines, ends=len(lines) - 1)
            else:
                yield from self._wanted(lines, ends=len(lines))
        if not self.count:
            what = f"{self.broken}, nothing of it can be read" if self.broken else "is empty"
            raise InputError(what, file=str(self.path), need="a training log")
        if rest.rstrip(b"\r"):
            self.cut = True
            yield from self._wanted([rest], ends=0)
        elif self.count > 1:
            self.count -= 1  # behind the last line's end there is no other one

    def _wanted(self, lines: list[bytes], ends: int) -> Iterator[tuple[int, bytes]]:
        """Yield those lines that hold one of the words, or all while `everything()`; adds `ends` to the line count."""
        block = b"\n".join(lines)
        words = [word for word in self.words if word in block]
        for index, line in enumerate(lines):
            if self.everything() or any(word in line for word in words):
                yield self.count + index, line
        self.count += ends


def text(piece: bytes) -> str:
    """Return a line as text: invalid UTF-8 replaced, colour codes and NULs removed."""
    line = piece.decode("utf-8", errors="replace")
    return (_COLOUR.sub("", line) if "\x1b" in line else line).replace("\0", "")


def prefix(line: str) -> tuple[int | None, str]:
    """Return the rank in a launcher's prefix (None if there is none) and the line without up to three prefixes."""
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
