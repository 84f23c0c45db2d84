"""A command as it runs in a terminal of so many columns, and what it would have shown on pages of other widths."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

import pytest

from symconfig.cli.main import main
from symconfig.report import grid
from symconfig.report.grid import Block

ROWS = 40
_CODES = re.compile(r"\x1b\[[0-9;]*m")  # colours, which take no room


@dataclass(slots=True)
class Seen:
    """out, err: as the terminal had them. shown, notes: what was handed over to be written as wide as the page is."""

    code: int
    out: str
    err: str
    shown: list[Sequence[Block]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def pages(self, columns: int) -> Iterator[str]:
        """Yield all of it again, on a page that is so wide: piped, and on a terminal."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", str(columns))
            for stream in (io.StringIO(), Terminal()):
                for blocks in self.shown:
                    grid.show(blocks, stream)
                yield bare(stream.getvalue())
        yield "\n".join(grid.wrapped(text, columns) for text in self.notes)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def bare(text: str) -> str:
    return _CODES.sub("", text)


def on_terminal(words: Sequence[str], columns: int = 80) -> Seen:
    """Run a command whose output and whose messages go to terminals of this width."""
    seen = Seen(0, "", "")
    with pytest.MonkeyPatch.context() as patch, _terminal(columns) as out, _terminal(columns) as err:
        patch.delenv("COLUMNS", raising=False)
        patch.setenv("TERM", "xterm-256color")
        patch.setattr(sys, "stdout", out.stream)
        patch.setattr(sys, "stderr", err.stream)
        patch.setattr(grid, "show", _kept(grid.show, seen.shown))
        patch.setattr(grid, "wrapped", _heard(grid.wrapped, seen.notes))
        seen.code = main(list(words))
    seen.out, seen.err = bare(out.text()), bare(err.text())
    return seen


def _kept(
    show: Callable[[Sequence[Block], TextIO], None], shown: list[Sequence[Block]]
) -> Callable[[Sequence[Block], TextIO], None]:
    def call(blocks: Sequence[Block], stream: TextIO) -> None:
        shown.append(list(blocks))
        show(blocks, stream)

    return call


def _heard(wrapped: Callable[[str, int | None], str], notes: list[str]) -> Callable[[str, int | None], str]:
    def call(text: str, width: int | None) -> str:
        notes.append(text)
        return wrapped(text, width)

    return call


@dataclass(slots=True)
class _Screen:
    """The two ends of a pseudo-terminal: a program writes to `stream`, and what it wrote is read."""

    stream: TextIO
    reader: int
    _parts: list[bytes] = field(default_factory=list)

    def read(self) -> None:
        while part := _read(self.reader):
            self._parts.append(part)

    def text(self) -> str:
        return b"".join(self._parts).decode("utf-8").replace("\r\n", "\n")


def _read(reader: int) -> bytes:
    try:
        return os.read(reader, 65536)
    except OSError:  # the other end is closed
        return b""


@contextmanager
def _terminal(columns: int) -> Iterator[_Screen]:
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    screen = _Screen(open(writer, "w", encoding="utf-8"), reader)  # noqa: SIM115
    thread = threading.Thread(target=screen.read)
    thread.start()
    try:
        yield screen
    finally:
        screen.stream.close()
        thread.join()
        os.close(reader)
