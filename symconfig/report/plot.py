"""A picture of a page as a file: points over two logarithmic axes. matplotlib is imported only here."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from pathlib import Path
from typing import Any

from symconfig.errors import InputError
from symconfig.report.page.pictures import BAND, Scatter, Series
from symconfig.resources import check_output, whole

ENDINGS = (".png", ".svg", ".pdf")
# Colours that the colour-blind tell apart: Okabe and Ito's ("Color Universal Design") without the faint yellow, then
# the dark and the muted of Paul Tol's ("Colour Schemes", 2021). Neighbours differ in their marker as well.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#332288",
    "#882255", "#999933", "#44AA99", "#AA4499", "#994F00", "#CC6677", "#117733", "#777777",
)  # fmt: skip
MARKERS = "os^DvXP<>ph*d"
# Ticks of a decade, by the most decades of an axis that has them.
_FINE = (1.0, 1.2, 1.5, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
_TICKS = {0.6: _FINE, 2: (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), 4: (1.0, 2.0, 5.0), 99: (1.0,)}
_CELL = 260  # points squared


def check(path: Path) -> None:
    """Check that the picture can be written, before a minute of work: raise InputError where not."""
    need = "a file that ends in " + " or ".join(ENDINGS)
    check_output(path, "--plot", ENDINGS, "no picture has this ending", need, got=path.suffix or str(path))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        what = "pictures need matplotlib, which is not installed"
        raise InputError(what, field="--plot", hint="pip install matplotlib") from None


def plot(picture: Scatter, path: Path) -> None:
    """Write the picture. Equal pictures give equal bytes. Raises InputError where it has no dot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    dots = [dot for series in picture.series for dot in series.dots]
    if not dots:
        raise InputError(f"{picture.none}, so there is nothing to draw", field="--plot")
    figure = Figure(figsize=(7.5, 7.5) if picture.diagonal else (8.0, 5.5))
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    most = max(len(series.dots) for series in picture.series)
    for index, series in sorted(enumerate(picture.series), key=lambda item: -len(item[1].dots)):
        faint = len(series.dots) > max(most / 3, 10) and not picture.cells
        _draw(axes, series, index, faint=faint, cells=picture.cells)
    axes.set(xscale="log", yscale="log", xlabel=picture.x, ylabel=picture.y)
    if picture.diagonal:
        _band(axes, [value for dot in dots for value in (dot.x, dot.y)])
    if picture.upright is not None:
        name, at = picture.upright
        axes.axvline(at, color="0.3", linestyle="--", linewidth=1.0)
        place = {"xycoords": ("data", "axes fraction"), "xytext": (4, -12), "textcoords": "offset points"}
        axes.annotate(name, (at, 1.0), fontsize=9, color="0.3", **place)
    _ticks(axes.xaxis, axes.get_xlim(), sorted({dot.x for dot in dots}) if picture.cells else ())
    _ticks(axes.yaxis, axes.get_ylim(), sorted({dot.y for dot in dots}) if picture.cells else ())
    axes.tick_params(which="major", labelsize=8)
    axes.grid(which="major", color="0.92", linewidth=0.6, zorder=0)
    axes.set_title(picture.title, loc="left", fontsize=11)
    smaller = 0.5 if picture.cells else 1.0
    beyond = {"bbox_to_anchor": (1.02, 1.0), "borderaxespad": 0.0}
    axes.legend(loc="upper left", fontsize=9, frameon=False, markerscale=smaller, **beyond)
    _save(figure, path)


def _draw(axes: Any, series: Series, index: int, *, faint: bool, cells: bool) -> None:
    """Draw the dots of a series, its lines, and what is written beside dots."""
    colour, places = COLOURS[index % len(COLOURS)], [(dot.x, dot.y) for dot in series.dots]
    axes.scatter(
        *zip(*places, strict=True),
        s=_CELL if cells else 24,
        marker="s" if cells else MARKERS[index % len(MARKERS)],
        color=colour,
        alpha=0.55 if faint else 0.85,
        linewidths=0.4,
        edgecolors="white",
        zorder=3,
        label=series.name,
    )
    for line in series.lines:
        axes.plot(*zip(*(places[place] for place in line), strict=True), color=colour, linewidth=1.0, zorder=2)
    for dot in series.dots:
        if dot.label:
            offset = {"xytext": (3, 4), "textcoords": "offset points"}
            axes.annotate(dot.label, (dot.x, dot.y), fontsize=8, color=colour, **offset)


def _band(axes: Any, values: list[float]) -> None:
    """Draw the line on which both quantities are equal, and the band around it."""
    ends = (min(values) / 1.5, max(values) * 1.5)
    low, high = ([(1 + off) * end for end in ends] for off in (-BAND, BAND))
    axes.fill_between(ends, low, high, color="0.92", zorder=0)
    for line, style, label in ((low, "--", None), (ends, "-", "equal"), (high, "--", f"±{100 * BAND:.0f} %")):
        axes.plot(ends, line, style, color="0.4", linewidth=0.9, zorder=1, label=label)
    axes.set(xlim=ends, ylim=ends, aspect="equal")


def _ticks(axis: Any, ends: tuple[float, float], values: Sequence[float]) -> None:
    """Put ticks at values, or as many on a logarithmic axis as its decades leave room for."""
    from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter

    ticks = next(ticks for most, ticks in _TICKS.items() if log10(ends[1] / ends[0]) < most)
    axis.set_major_locator(FixedLocator(values) if values else LogLocator(subs=ticks, numticks=40))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 100 else f"{value:.3g}")
    axis.set_minor_formatter(NullFormatter())


def _save(figure: Any, path: Path) -> None:
    """Save the figure, whole or not at all, and without a date in it."""
    import matplotlib

    kind = path.suffix.lower().removeprefix(".")
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with whole(path) as part, matplotlib.rc_context({"svg.hashsalt": "symconfig"}):
        figure.savefig(part, format=kind, dpi=150, bbox_inches="tight", metadata=metadata)
