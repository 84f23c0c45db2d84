"""A picture as plain shapes, in pixels from the upper left; what writes SVG and PNG knows nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LETTER = 0.58  # width of a digit over the size of its type, in a sans-serif face


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Boxes:
    """The boxes of one colour."""

    fill: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A line through the points. fill: of the area that it encloses."""

    points: tuple[tuple[float, float], ...]
    stroke: str | None = None
    fill: str | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """One line of text; y is its baseline."""

    x: float
    y: float
    text: str
    size: float
    fill: str = "#222222"
    anchor: Literal["start", "middle", "end"] = "start"
    bold: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture, in which later shapes lie above."""

    width: float
    height: float
    title: str
    shapes: tuple[Boxes | Line | Words, ...]


def text_width(text: str, size: float) -> float:
    """Return the width of a text in pixels, roughly."""
    return LETTER * size * len(text)
