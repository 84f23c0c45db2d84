"""The schedule as a picture: a lane of work and one of memory for every stage, under one axis of time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from symconfig.format import gib, percent
from symconfig.report.timeline.chart import LOOKS, OPTIMIZER, Chart
from symconfig.report.timeline.scene import Box, Boxes, Line, Scene, Words, text_width
from symconfig.report.timeline.windows import Axis, axes, fitting, gaps, ticks
from symconfig.schedule.timeline import Event

Shapes = Iterator[Boxes | Line | Words]

_WIDTH, _LEFT, _RIGHT = 1400.0, 74.0, 1240.0
_TOP, _LINE = 30.0, 19.0
_LANE, _NETWORK, _MEMORY, _BETWEEN = 18.0, 5.0, 22.0, 9.0
_GAP = 24.0  # of a broken axis
_SMALL, _LARGE = 6.2, 10.0  # sizes of the numbers' type
_GREY, _PALE, _INK = "#666666", "#e4e4e4", "#222222"
_FILL, _EDGE = "#cfd8e3", "#5b6b7f"
# How far the first chunk's colour goes to white, and the last one's to black, which numbers are still read on.
_LIGHTER, _DARKER = 0.5, 0.18
# Pixels of a forward: the least in a picture of the whole step, and what shows a number of two digits.
_LEAST, _WANTED = 3.5, 15.0
_APART = 90.0  # pixels between ticks


def picture(chart: Chart) -> Scene:
    """Draw everything to scale; where a step is too long for that, three pieces of it."""
    pieces = fitting(chart.phases, _RIGHT - _LEFT, _LEAST, _WANTED)
    drawn = axes(pieces, _LEFT, _RIGHT, _GAP)
    notes = [*chart.notes, *([left_out] if (left_out := gaps(pieces)) else [])]
    top = _TOP + _LINE * (len(notes) + 2)
    row = _LANE + _network_height(chart) + _MEMORY + _BETWEEN
    bottom = top + row * chart.timeline.pp
    shapes: list[Boxes | Line | Words] = [Words(16, _TOP, chart.title, 16, bold=True)]
    shapes += [Words(16, _TOP + _LINE * (number + 1), note, 12, _GREY) for number, note in enumerate(notes)]
    shapes += _legend(chart, _TOP + _LINE * (len(notes) + 1))
    shapes += _grid(drawn, top, bottom, chart.total_s)
    for stage in range(chart.timeline.pp):
        shapes += _stage(chart, stage, drawn, top + row * stage)
    return Scene(_WIDTH, bottom + 30, chart.title, tuple(shapes))


def _network_height(chart: Chart) -> float:
    """Return the height of the lane of what runs during the work."""
    return _NETWORK if any(LOOKS[kind].alongside for kind in chart.kinds) else 0.0


def _legend(chart: Chart, y: float) -> Shapes:
    x = 16.0
    for kind, look in LOOKS.items():
        if kind in chart.kinds:
            yield Boxes(look.colour, (Box(x, y - 10, 14, 11),))
            yield Words(x + 19, y, look.words, 11)
            x += 37 + text_width(look.words, 11)
    yield Boxes(_FILL, (Box(x, y - 10, 14, 11),))
    text = f"memory. Numbers are {'slices of ' if chart.timeline.schedule.slices > 1 else ''}microbatches"
    text += "; of a stage's chunks, later ones are darker." if max(map(len, chart.timeline.placed)) > 1 else "."
    yield Words(x + 19, y, text, 11)
    yield Words(_RIGHT + 66, y, "idle", 11, _GREY, "end")
    yield Words(_WIDTH - 12, y, "peak GiB", 11, _GREY, "end")


def _grid(drawn: tuple[Axis, ...], top: float, bottom: float, total_s: float) -> Shapes:
    for axis in drawn:
        edge = axis.left
        for x, label in ticks(axis, _APART, total_s):
            yield Line(((x, top - 4), (x, bottom)), _PALE)
            half = text_width(label, 11) / 2
            if x - half >= edge - half:
                yield Words(x, bottom + 16, label, 11, _GREY, "middle")
                edge = x + half
        yield Line(((axis.left, bottom), (axis.right, bottom)), _GREY)
    for axis in drawn[:-1]:
        for x in (axis.right + _GAP / 2 - 3, axis.right + _GAP / 2 + 3):
            yield Line(((x - 3, bottom + 5), (x + 3, bottom - 5)), _GREY)


def _stage(chart: Chart, stage: int, drawn: tuple[Axis, ...], y: float) -> Shapes:
    yield Words(_LEFT - 8, y + 13, f"stage {stage}", 11, anchor="end")
    yield Words(_RIGHT + 66, y + 13, percent(chart.idle(stage)), 11, anchor="end")
    below = y + _LANE + _network_height(chart)
    yield Words(_WIDTH - 12, below + _MEMORY - 4, gib(chart.memory[stage].peak_bytes), 11, anchor="end")
    for axis in drawn:
        yield from _work(chart, stage, axis, y)
        yield from _memory(chart, stage, axis, below + 1)


def _work(chart: Chart, stage: int, axis: Axis, y: float) -> Shapes:
    """Yield the boxes by colour, then the numbers that fit into theirs."""
    by_colour: dict[str, list[Box]] = {}
    numbers: list[Words] = []
    size = _type(chart, axis)
    for event in chart.within(stage, [axis.piece]):
        left, right = axis.place(event.start_s), axis.place(event.end_s)
        top, height = (y + _LANE, _NETWORK) if LOOKS[event.kind].alongside else (y, _LANE)
        # A hair of white parts neighbours, never more than a fifth of what is narrow.
        box = Box(left, top, right - left - min(0.6, (right - left) / 5), height)
        by_colour.setdefault(_colour(event, chart), []).append(box)
        number = str(event.microbatch)
        if height == _LANE and event.microbatch >= 0 and box.width >= text_width(number, size) + 2:
            numbers.append(Words(left + box.width / 2, y + 13, number, size, _INK, "middle"))
    yield from (Boxes(colour, tuple(boxes)) for colour, boxes in by_colour.items())
    yield from numbers


def _type(chart: Chart, axis: Axis) -> float:
    """Return the type size in which the highest number fits a forward, within what can be read."""
    forward = chart.phases.forward_s * (axis.right - axis.left) / axis.piece.seconds
    return min(max((forward - 3) / text_width(str(chart.timeline.m - 1), 1.0), _SMALL), _LARGE)


def _colour(event: Event, chart: Chart) -> str:
    """Choose the colour of the kind; lighter for the first chunks of a stage, darker for the last."""
    colour, chunks = LOOKS[event.kind].colour, max(map(len, chart.timeline.placed))
    if chunks == 1 or LOOKS[event.kind].alongside or event.kind == OPTIMIZER:
        return colour
    share = event.chunk / (chunks - 1)
    toward, amount = (255, _LIGHTER * (1 - 2 * share)) if share < 0.5 else (0, _DARKER * (2 * share - 1))
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (toward - part) * amount):02x}" for part in parts)


def _memory(chart: Chart, stage: int, axis: Axis, y: float) -> Shapes:
    """Yield the most of each pixel, from nothing to the peak of the fullest stage."""
    pixels = max(1, round(axis.right - axis.left))
    edges = np.linspace(axis.piece.start_s, axis.piece.end_s, pixels + 1)
    heights = chart.memory[stage].most(edges) / chart.peak_bytes * _MEMORY
    bottom = y + _MEMORY
    outline = [(axis.left, bottom)]
    for left, right, height in zip(edges[:-1], edges[1:], heights, strict=True):
        if len(outline) == 1 or bottom - height != outline[-1][1]:
            outline += [(axis.place(left), outline[-1][1]), (axis.place(left), bottom - height)]
        last = (axis.place(right), bottom - height)
    yield Line((*outline, last, (axis.right, bottom)), _EDGE, _FILL)
