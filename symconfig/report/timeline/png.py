"""A scene as PNG. matplotlib is imported only here."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from symconfig.errors import InputError, Problem
from symconfig.report.timeline.scene import Boxes, Line, Scene, Words

_INCH = 100.0  # pixels of the scene
_SHARPNESS = 2  # pixels of the file for each of them
_ACROSS = {"start": "left", "middle": "center", "end": "right"}


def check() -> None:
    """Check that matplotlib is there, before the work: raise InputError where it is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        what = "a PNG needs matplotlib, which is not installed"
        raise InputError(Problem(what, field="--png", hint="pip install 'symconfig[plot]', or --svg")) from None


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
