"""A scene as SVG: the same bytes for the same scene, no script, no font of its own."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from symconfig.report.timeline.scene import Boxes, Line, Scene, Words

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
