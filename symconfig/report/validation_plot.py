"""`symconfig validate --plot`: predicted against measured seconds of a step. matplotlib is imported only here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig.errors import InputError, Problem

if TYPE_CHECKING:
    from symconfig.measured.score import Source

ENDINGS = (".png", ".svg", ".pdf")
# Colours that the colour-blind tell apart: Okabe and Ito's ("Color Universal Design") without the faint yellow, then
# the dark and the muted of Paul Tol's ("Colour Schemes", 2021). Neighbours differ in their marker as well.
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#000000",
    "#332288",
    "#882255",
    "#999933",
    "#44AA99",
    "#AA4499",
    "#994F00",
    "#CC6677",
    "#117733",
    "#777777",
)
MARKERS = "os^DvXP<>ph*d"
_BAND = 0.1


def check(path: Path) -> None:
    """Check that the picture can be written, before a minute of work: raise InputError where not."""
    if path.suffix.lower() not in ENDINGS:
        need = "a file that ends in " + " or ".join(ENDINGS)
        raise InputError(Problem("no picture has this ending", field="--plot", got=path.suffix or str(path), need=need))
    if not path.parent.is_dir():
        raise InputError(Problem("there is no such folder", field="--plot", got=str(path.parent)))
    if path.is_dir():
        raise InputError(Problem("this is a folder, a file is needed", field="--plot", got=str(path)))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        what = "pictures need matplotlib, which is not installed"
        raise InputError(Problem(what, field="--plot", hint="pip install matplotlib")) from None


def points(scores: Sequence[Source]) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return, by source, measured and predicted seconds of each row that has a time."""
    by_source = (
        (source.name, [(item.time[1], item.time[0]) for item in source.rows if item.time]) for source in scores
    )
    return [(name, pairs) for name, pairs in by_source if pairs]


def plot(scores: Sequence[Source], path: Path) -> None:
    """Write the picture. Equal scores give equal bytes. Raises InputError when no row has a time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter, StrMethodFormatter

    drawn = points(scores)
    if not drawn:
        raise InputError(Problem("no row has a time, so there is nothing to draw", field="--plot"))
    figure = Figure(figsize=(7.5, 7.5))
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    values = [value for _, pairs in drawn for pair in pairs for value in pair]
    low, high = min(values) / 1.5, max(values) * 1.5
    ends = (low, high)
    axes.fill_between(
        ends, [(1 - _BAND) * end for end in ends], [(1 + _BAND) * end for end in ends], color="0.92", zorder=0
    )
    for factor, style in ((1 - _BAND, "--"), (1.0, "-"), (1 + _BAND, "--")):
        label = "as measured" if factor == 1 else "±10 %" if factor > 1 else None
        axes.plot(ends, [factor * end for end in ends], style, color="0.4", linewidth=0.9, zorder=1, label=label)
    most = max(len(pairs) for _, pairs in drawn)
    for index, (name, pairs) in sorted(enumerate(drawn), key=lambda item: -len(item[1][1])):
        error = sum(abs(predicted / measured - 1) for measured, predicted in pairs) / len(pairs)
        axes.scatter(
            *zip(*pairs, strict=True),
            s=26,
            marker=MARKERS[index % len(MARKERS)],
            color=COLOURS[index % len(COLOURS)],
            alpha=0.55 if len(pairs) > most / 3 else 0.85,
            linewidths=0.4,
            edgecolors="white",
            zorder=2,
            label=f"{name}: {len(pairs)} rows, {100 * error:.1f} %",
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=ends,
        ylim=ends,
        aspect="equal",
        xlabel="measured seconds of a step",
        ylabel="predicted seconds of a step",
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(1, 0.4)))
    axes.grid(which="major", color="0.9", linewidth=0.6, zorder=0)
    axes.set_title("Predicted against measured step time; mean absolute error by source", loc="left", fontsize=11)
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0.0, fontsize=9, frameon=False)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Save the figure, whole or not at all, and without a date in it."""
    import matplotlib

    kind = path.suffix.lower().removeprefix(".")
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    part = path.with_name(path.name + ".part")
    try:
        with matplotlib.rc_context({"svg.hashsalt": "symconfig"}):
            figure.savefig(part, format=kind, dpi=150, bbox_inches="tight", metadata=metadata)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(Problem(f"cannot be written: {error.strerror}", file=str(path))) from None
