"""Progress is silent for a second, then short."""

from __future__ import annotations

import io
from collections.abc import Callable

from symconfig.report.progress import Progress


def ticking(*moments: float) -> Callable[[], float]:
    rest = iter(moments)
    return lambda: next(rest)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_quick_work_shows_nothing() -> None:
    stream = io.StringIO()
    with Progress(stream, ticking(0.0, 0.3, 0.9)) as progress:
        progress("search", 0.3)
        progress("search", 0.9)
    assert stream.getvalue() == ""


def test_a_pipe_gets_no_progress() -> None:
    stream = io.StringIO()
    with Progress(stream, ticking(0.0, 1.5, 2.0, 7.0)) as progress:
        for share in (0.2, 0.3, 1.4):
            progress("search", share)
    assert stream.getvalue() == ""


def test_a_terminal_is_redrawn_and_left_clean() -> None:
    stream = Terminal()
    with Progress(stream, ticking(0.0, 1.5, 1.55, 1.7)) as progress:
        for share in (0.2, 0.3, 0.4):
            progress("search", share)
    assert stream.getvalue() == "\rsearch: 20 %\rsearch: 40 %\r" + " " * 12 + "\r"
