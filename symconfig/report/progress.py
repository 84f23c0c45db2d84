"""Progress on the terminal of standard error, shown only once the work has taken longer than a second."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from symconfig.format import clean

SILENT_S = 1.0
REDRAW_S = 0.1


class Progress:
    """A progress line on a terminal, drawn only after SILENT_S; nothing on pipes and files.

    Call it with a phase and its share done (0 to 1). As a context manager it clears the line at exit.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._started = clock()
        self._drawn = float("-inf")
        self._width = 0
        self._terminal = stream.isatty()

    def __call__(self, phase: str, share: float) -> None:
        self.say(f"{phase}: {100 * min(max(share, 0.0), 1.0):.0f} %")

    def say(self, phase: str) -> None:
        """Show a phase without a share, cut to the terminal's width. Nothing if it is no terminal, in the first
        SILENT_S, or within REDRAW_S of the last redraw.
        """
        now = self._clock()
        if not self._terminal or now - self._started < SILENT_S or now - self._drawn < REDRAW_S:
            return
        self._drawn = now
        text = clean(phase)[: shutil.get_terminal_size().columns - 1]  # a line that is broken is never cleared
        self._stream.write("\r" + text.ljust(self._width))
        self._width = len(text)
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
