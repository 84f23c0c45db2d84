"""`symconfig whatif --plot`: which plan is the best where, as a picture. matplotlib is imported only here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from symconfig.report.validation_plot import COLOURS, save
from symconfig.runs.whatif.vary import Vary
from symconfig.runs.whatif.whatif import Line, Map, WhatIf


def plot(what_if: WhatIf, path: Path) -> None:
    """Draw the map of two names, or the step over the ranges of one, a colour for each plan."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.add_subplot()
    if what_if.map is not None:
        _draw_map(axes, what_if.map)
    else:
        _draw_line(axes, what_if.lines[0])
    figure.legend(loc="outside lower center", fontsize=8)
    save(figure, path)


def _colours(names: list[str]) -> dict[str, str]:
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(dict.fromkeys(names))}


def _draw_map(axes: Any, one: Map) -> None:
    cells = [
        (first, second, answer.name)
        for first, row in zip(one.firsts, one.answers, strict=True)
        for second, answer in zip(one.seconds, row, strict=True)
    ]
    for name, colour in _colours([name for *_, name in cells]).items():
        mine = [(first, second) for first, second, each in cells if each == name]
        axes.scatter(*zip(*mine, strict=True), marker="s", s=260, color=colour, label=name)
    _scale(axes, one.first, along="x")
    _scale(axes, one.second, along="y")


def _draw_line(axes: Any, one: Line) -> None:
    colours, named = _colours([span.answer.name for span in one.spans]), set[str]()
    for span in one.spans:
        name = span.answer.name
        steps = (span.answer.step_s or 0.0, span.high_s or 0.0)
        label = None if name in named else name
        axes.plot((span.low, span.high), steps, marker="o", color=colours[name], label=label)
        named.add(name)
    _scale(axes, one.vary, along="x")
    axes.set_ylabel("seconds of a step")


def _scale(axes: Any, vary: Vary, along: str) -> None:
    label = vary.name if vary.whole else f"{vary.name}, times what it is"
    (axes.set_xscale if along == "x" else axes.set_yscale)("log", base=2)
    (axes.set_xlabel if along == "x" else axes.set_ylabel)(label)
