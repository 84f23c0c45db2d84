"""The schedule as text: a line a stage with a letter for what it does at each time, and its memory as a sparkline."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from symconfig.format import gib, percent, seconds
from symconfig.report.grid import Painted, Span
from symconfig.report.timeline.chart import Chart
from symconfig.report.timeline.kinds import IDLE, LOOKS
from symconfig.report.timeline.windows import Window, fitting
from symconfig.schedule.timeline import Event

_LEVELS = "▁▂▃▄▅▆▇█"
_PLAIN_LEVELS = "_.:-=+*#"  # where the terminal has letters of ASCII only
_BREAK = " / "
# Letters that a forward has at least, and those that show its number, too, with a step of two digits.
_LEAST, _WANTED = 1.6, 3.0


@dataclass(frozen=True, slots=True)
class _Piece:
    """A window and the letters that it takes."""

    window: Window
    letters: int

    def place(self, at_s: float) -> int:
        """The letter at that time, 0 to `letters`."""
        share = (at_s - self.window.start_s) / self.window.seconds
        return round(min(max(share, 0.0), 1.0) * self.letters)


def drawing(chart: Chart, width: int, ascii_only: bool = False) -> Painted:
    """`width`: letters of a line. Each line ends in its numbers: the stage's idle share, or its peak memory."""
    count = chart.timeline.pp
    heads = [f"{stage:>{len(str(count - 1))}} " for stage in range(count)]
    idle = [f" {percent(chart.idle(stage)):>8}" for stage in range(count)]
    peaks = [f" {gib(memory.peak_bytes):>8}" for memory in chart.memory]
    pieces = _pieces(chart, width - len(heads[0]) - max(map(len, (*idle, *peaks))))
    letters = sum(piece.letters for piece in pieces) + len(_BREAK) * (len(pieces) - 1)
    work = [((head, ""), *_work(chart, stage, pieces), (tail, ""))
            for stage, (head, tail) in enumerate(zip(heads, idle, strict=True))]
    levels = _PLAIN_LEVELS if ascii_only else _LEVELS
    memory = [((head + _sparkline(chart, stage, pieces, levels), ""), (tail, ""))
              for stage, (head, tail) in enumerate(zip(heads, peaks, strict=True))]
    indent = " " * len(heads[0])
    ruler = ((indent + _ruler(pieces), "dim"), (f" {'idle':>8}", "dim"))
    scale = f"memory of each stage, {levels[0]} {gib(chart.least_bytes)} to {levels[-1]} {gib(chart.peak_bytes)} GiB"
    title = ((f"{indent}{scale:{letters}}", "dim"), (f" {'peak GiB':>8}", "dim"))
    return Painted((ruler, *work, *_legend(chart, width), (("", ""),), title, *memory))


def _pieces(chart: Chart, letters: int) -> tuple[_Piece, ...]:
    shown = fitting(chart.phases, letters, _LEAST, _WANTED)
    room = letters - len(_BREAK) * (len(shown) - 1)
    total = sum(window.seconds for window in shown)
    return tuple(_Piece(window, max(1, int(room * window.seconds / total))) for window in shown)


def _work(chart: Chart, stage: int, pieces: tuple[_Piece, ...]) -> list[Span]:
    """What the stage does, letter by letter; runs of one kind are one span."""
    spans: list[Span] = []
    for piece in pieces:
        letters, kinds = [IDLE] * piece.letters, [""] * piece.letters
        for event in chart.within(stage, [piece.window]):  # what runs beside work is seen where there is none
            begin, end = piece.place(event.start_s), piece.place(event.end_s)
            if end > begin:
                number = str(event.microbatch) if event.start_s >= piece.window.start_s else ""
                letters[begin:end] = _letters(event, number, end - begin)
                kinds[begin:end] = [event.kind] * (end - begin)
        spans += [*([(_BREAK, "dim")] if spans else []), *_runs(letters, kinds)]
    return spans


def _letters(event: Event, number: str, width: int) -> str:
    """With the number where a letter of the kind is left beside it."""
    numbered = len(number) < width and event.microbatch >= 0 and not LOOKS[event.kind].beside
    return (number if numbered else "").ljust(width, LOOKS[event.kind].letter)


def _runs(letters: list[str], kinds: list[str]) -> list[Span]:
    edges = [0, *(index for index in range(1, len(kinds)) if kinds[index] != kinds[index - 1]), len(kinds)]
    return [("".join(letters[begin:end]), LOOKS[kinds[begin]].style if kinds[begin] else "dim")
            for begin, end in pairwise(edges)]


def _sparkline(chart: Chart, stage: int, pieces: tuple[_Piece, ...], levels: str) -> str:
    """From the least that any stage holds to the most."""
    least, span = chart.least_bytes, max(chart.peak_bytes - chart.least_bytes, 1.0)
    found = []
    for piece in pieces:
        edges = np.linspace(piece.window.start_s, piece.window.end_s, piece.letters + 1)
        heights = (chart.memory[stage].most(edges) - least) / span * (len(levels) - 1)
        found.append("".join(levels[height] for height in np.ceil(heights - 1e-9).astype(int)))
    return _BREAK.join(found)


def _ruler(pieces: tuple[_Piece, ...]) -> str:
    """The time at which each piece begins, and at which the last one ends."""
    found = []
    for number, piece in enumerate(pieces):
        begin, end = (f"{seconds(at)} s" for at in (piece.window.start_s, piece.window.end_s))
        tail = end if number == len(pieces) - 1 and len(begin) + len(end) < piece.letters else ""
        found.append((begin.ljust(piece.letters - len(tail)) + tail)[:piece.letters])
    return _BREAK.join(found)


def _legend(chart: Chart, width: int) -> list[tuple[Span, ...]]:
    """The letters of the kinds that occur, and of none, on as many lines as they need."""
    items = [(look.letter * 2, look.style, look.words) for kind, look in LOOKS.items()
             if kind in chart.kinds]
    lines: list[list[Span]] = [[]]
    for letters, style, words in (*items, (IDLE * 2, "dim", "idle")):
        spans: list[Span] = [("  ", ""), (letters, style), (f" {words}", "")]
        if sum(len(text) for text, _ in lines[-1] + spans) > width:
            lines.append([])
        lines[-1] += spans
    return [tuple(line) for line in lines]
