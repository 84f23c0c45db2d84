"""The schedule as text: a line a stage with a letter for what it does at each time, and its memory as a sparkline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from symconfig.format import gib, percent, seconds
from symconfig.report.grid import Painted, Span
from symconfig.report.timeline.chart import IDLE, LOOKS, Chart
from symconfig.report.timeline.windows import Axis, axes, fitting, gaps, ticks
from symconfig.schedule.timeline import Event

_LEVELS = "▁▂▃▄▅▆▇█"
_PLAIN_LEVELS = "_.:-=+*#"  # where the terminal has letters of ASCII only
_BREAK = " / "
_TAIL = 9  # letters of the number at the end of a line
# Letters that a forward has at least, and those that show its number, too, with a step of two digits.
_LEAST, _WANTED = 1.6, 3.0
_APART = 14.0  # letters between times


def drawing(chart: Chart, width: int, ascii_only: bool = False) -> Painted:
    """Draw a chart; `width`: letters of a line. Each line ends in its number: the stage's idle share, or its peak
    memory."""
    count = chart.timeline.pp
    heads = [f"{stage:>{len(str(count - 1))}} " for stage in range(count)]
    room = width - len(heads[0]) - _TAIL
    pieces = fitting(chart.phases, room, _LEAST, _WANTED)
    drawn = axes(pieces, 0.0, float(room), float(len(_BREAK)))
    levels = _PLAIN_LEVELS if ascii_only else _LEVELS
    work = [
        ((head, ""), *_work(chart, stage, drawn), (f"{percent(chart.idle(stage)):>{_TAIL}}", ""))
        for stage, head in enumerate(heads)
    ]
    memory = [
        ((head + _sparkline(chart, stage, drawn, levels), ""), (f"{gib(chart.memory[stage].peak_bytes):>{_TAIL}}", ""))
        for stage, head in enumerate(heads)
    ]
    indent = " " * len(heads[0])
    ruler = ((indent + _ruler(drawn, chart.total_s), "dim"), (f"{'idle':>{_TAIL}}", "dim"))
    scale = f"memory of each stage, {levels[0]} {gib(chart.least_bytes)} to {levels[-1]} {gib(chart.peak_bytes)} GiB"
    title = ((f"{indent}{scale:{room}}", "dim"), (f"{'peak GiB':>{_TAIL}}", "dim"))
    left_out = [((f"  {missing}", "dim"),)] if (missing := gaps(pieces)) else []
    return Painted((ruler, *work, *_legend(chart, width), *left_out, (("", ""),), title, *memory))


def _column(axis: Axis, at_s: float) -> int:
    return round(axis.place(at_s))


def _blank(drawn: Sequence[Axis], fill: str) -> list[str]:
    """Return a line that is broken where the axis is."""
    letters = [fill] * round(drawn[-1].right)
    for before, after in pairwise(drawn):
        begin, end = round(before.right), round(after.left)
        letters[begin:end] = _BREAK[: end - begin].ljust(end - begin)
    return letters


def _work(chart: Chart, stage: int, drawn: Sequence[Axis]) -> list[Span]:
    """Return the stage's work, letter by letter; runs of one kind are one span."""
    letters = _blank(drawn, IDLE)
    kinds = [""] * len(letters)
    for axis in drawn:
        for event in chart.within(stage, [axis.piece]):  # what runs beside work is seen where there is none
            begin, end = _column(axis, event.start_s), _column(axis, event.end_s)
            if end > begin:
                number = str(event.microbatch) if event.start_s >= axis.piece.start_s else ""
                letters[begin:end] = _letters(event, number, end - begin)
                kinds[begin:end] = [event.kind] * (end - begin)
    edges = [0, *(index for index in range(1, len(kinds)) if kinds[index] != kinds[index - 1]), len(kinds)]
    return [
        ("".join(letters[begin:end]), LOOKS[kinds[begin]].style if kinds[begin] else "dim")
        for begin, end in pairwise(edges)
    ]


def _letters(event: Event, number: str, width: int) -> str:
    """Return an event's letters, with the number where a letter of the kind is left over."""
    numbered = len(number) < width and event.microbatch >= 0 and not LOOKS[event.kind].alongside
    return (number if numbered else "").ljust(width, LOOKS[event.kind].letter)


def _sparkline(chart: Chart, stage: int, drawn: Sequence[Axis], levels: str) -> str:
    """Draw a stage's memory from the least that any stage holds to the most."""
    least, span = chart.least_bytes, max(chart.peak_bytes - chart.least_bytes, 1.0)
    letters = _blank(drawn, " ")
    for axis in drawn:
        begin, end = round(axis.left), round(axis.right)
        edges = np.linspace(axis.piece.start_s, axis.piece.end_s, end - begin + 1)
        heights = (chart.memory[stage].most(edges) - least) / span * (len(levels) - 1)
        letters[begin:end] = [levels[height] for height in np.ceil(heights - 1e-9).astype(int)]
    return "".join(letters)


def _ruler(drawn: Sequence[Axis], total_s: float) -> str:
    """Round times at their places, as many as there is room for; of a piece without one, when it begins."""
    letters, free = _blank(drawn, " "), 0
    for axis in drawn:
        times = [(round(place), f"|{label}") for place, label in ticks(axis, _APART, total_s)]
        within = [(at, text) for at, text in times if at + len(text) <= round(axis.right)]
        for at, text in within or [(round(axis.left), f"|{seconds(axis.piece.start_s)} s")]:
            if free <= at and at + len(text) <= len(letters):
                letters[at : at + len(text)] = text
                free = at + len(text) + 1
    return "".join(letters)


def _legend(chart: Chart, width: int) -> list[tuple[Span, ...]]:
    """Return the letters of the kinds that occur, and of none, on as many lines as they need."""
    items = [(look.letter * 2, look.style, look.words) for kind, look in LOOKS.items() if kind in chart.kinds]
    lines: list[list[Span]] = [[]]
    for letters, style, words in (*items, (IDLE * 2, "dim", "idle")):
        spans: list[Span] = [("  ", ""), (letters, style), (f" {words}", "")]
        if sum(len(text) for text, _ in lines[-1] + spans) > width:
            lines.append([])
        lines[-1] += spans
    return [tuple(line) for line in lines]
