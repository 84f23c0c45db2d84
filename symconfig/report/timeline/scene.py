"""A picture as plain shapes, in pixels from the upper left, and its files: SVG, and PNG by matplotlib."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal
from xml.sax.saxutils import escape, quoteattr

from symconfig.errors import InputError

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


_FONT = "font-family=\"'DejaVu Sans', Verdana, Helvetica, sans-serif\""


def svg(scene: Scene) -> str:
    """Return the whole file."""
    width, height = _px(scene.width), _px(scene.height)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" {_FONT}>'
    )
    paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join((head, f"<title>{escape(scene.title)}</title>", paper, *_shapes(scene), "</svg>")) + "\n"


def _shapes(scene: Scene) -> Iterator[str]:
    for shape in scene.shapes:
        if isinstance(shape, Boxes):
            yield _boxes(shape)
        elif isinstance(shape, Line):
            points = " ".join(f"{_px(x)},{_px(y)}" for x, y in shape.points)
            yield f'<polyline points="{points}" fill="{shape.fill or "none"}" stroke="{shape.stroke or "none"}"/>'
        else:
            yield _words(shape)


def _boxes(shape: Boxes) -> str:
    """Draw boxes as one path: a fifth of the bytes of as many rectangles."""
    path = "".join(
        f"M{_px(box.x)} {_px(box.y)}h{_px(box.width)}v{_px(box.height)}h-{_px(box.width)}z" for box in shape.boxes
    )
    return f'<path fill="{shape.fill}" d="{path}"/>'


def _words(shape: Words) -> str:
    anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
    bold = ' font-weight="bold"' if shape.bold else ""
    return (
        f'<text x="{_px(shape.x)}" y="{_px(shape.y)}" font-size="{_px(shape.size)}" fill={quoteattr(shape.fill)}'
        f"{anchor}{bold}>{escape(shape.text)}</text>"
    )


def _px(value: float) -> str:
    """Format pixels to a hundredth, as short as can be."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


_INCH = 100.0  # pixels of the scene
_SHARPNESS = 2  # pixels of the file for each of them
_ACROSS = {"start": "left", "middle": "center", "end": "right"}


def check() -> None:
    """Check that matplotlib is there, before the work: raise InputError where it is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        what = "a PNG needs matplotlib, which is not installed"
        raise InputError(
            what, field="--png", hint="pip install 'symconfig[plot]', or pip install matplotlib; or --svg"
        ) from None


def png(scene: Scene) -> bytes:
    """Return the whole file: the same bytes for the same scene and matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(scene.width / _INCH, scene.height / _INCH), facecolor="#ffffff")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, scene.width), ylim=(scene.height, 0))
    axes.axis("off")
    for order, shape in enumerate(scene.shapes):
        _draw(axes, shape, order)
    file = BytesIO()
    figure.savefig(file, format="png", dpi=_INCH * _SHARPNESS, metadata={"Software": None})
    return file.getvalue()


def _draw(axes: Any, shape: Boxes | Line | Words, order: int) -> None:
    from matplotlib.collections import PolyCollection

    if isinstance(shape, Boxes):
        corners = [
            (
                (box.x, box.y),
                (box.x + box.width, box.y),
                (box.x + box.width, box.y + box.height),
                (box.x, box.y + box.height),
            )
            for box in shape.boxes
        ]
        axes.add_collection(PolyCollection(corners, facecolor=shape.fill, edgecolor="none", zorder=order))
    elif isinstance(shape, Line):
        across, down = zip(*shape.points, strict=True)
        if shape.fill is not None:
            axes.fill(across, down, color=shape.fill, linewidth=0, zorder=order)
        if shape.stroke is not None:
            axes.plot(across, down, color=shape.stroke, linewidth=0.72, zorder=order)
    else:
        axes.text(
            shape.x,
            shape.y,
            shape.text.replace("$", r"\$"),
            fontsize=shape.size * 72 / _INCH,
            color=shape.fill,
            ha=_ACROSS[shape.anchor],
            va="baseline",
            fontweight="bold" if shape.bold else "normal",
            zorder=order,
        )
