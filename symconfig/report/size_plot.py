"""`symconfig size --plot`: cost against time. matplotlib is imported only here and where pictures are saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from symconfig.errors import InputError, Problem
from symconfig.report.validation_plot import COLOURS, MARKERS, check, save
from symconfig.runs.sweep.amounts import DAY_S
from symconfig.runs.sweep.size import OfCluster, Size, Tried, frontier

__all__ = ["check", "plot"]
_SLOWEST = 4.0  # runs of so many deadlines are shown
_SUBS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # ticks of each decade


def plot(size: Size, path: Path) -> None:
    """Write the picture: for each cluster all numbers of GPUs with a plan, those that none beats joined by a line.

    Equal answers give equal bytes. Raises InputError when there is no plan.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    question = size.question
    drawn = [
        (one, shown)
        for one in size.clusters
        if (shown := [tried for tried in one.planned if tried.run_s <= _SLOWEST * question.deadline_s])
    ]
    if not drawn:
        raise InputError(Problem("no number of GPUs has a plan, so there is nothing to draw", field="--plot"))
    priced = all(tried.cost is not None for _, shown in drawn for tried in shown)
    figure = Figure(figsize=(8.0, 5.5))
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    for index, (one, shown) in enumerate(drawn):
        _draw(axes, one, shown, priced, index)
    axes.axvline(question.deadline_s / DAY_S, color="0.3", linestyle="--", linewidth=1.0)
    axes.annotate(
        "deadline",
        (question.deadline_s / DAY_S, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -12),
        textcoords="offset points",
        fontsize=9,
        color="0.3",
    )
    axes.set(xscale="log", yscale="log", xlabel="days", ylabel="cost" if priced else "GPU-hours")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=_SUBS, numticks=40))
        axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="major", labelsize=8)
    axes.grid(which="major", color="0.92", linewidth=0.6, zorder=0)
    axes.set_title(f"{question.model.name}, {question.tokens:,} tokens: numbers of GPUs", loc="left", fontsize=11)
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0.0, fontsize=9, frameon=False)
    save(figure, path)


def _draw(axes: Any, one: OfCluster, shown: list[Tried], priced: bool, index: int) -> None:
    """Draw one cluster: its points, its frontier as a line, and numbers at the frontier's points."""

    def cost(tried: Tried) -> float:
        return tried.cost if priced and tried.cost is not None else tried.gpu_hours

    colour, best = COLOURS[index % len(COLOURS)], frontier(shown, cost)
    axes.scatter(
        [tried.run_s / DAY_S for tried in shown],
        [cost(tried) for tried in shown],
        s=20,
        color=colour,
        marker=MARKERS[index % len(MARKERS)],
        zorder=3,
        label=one.name,
    )
    axes.plot(
        [tried.run_s / DAY_S for tried in best], [cost(tried) for tried in best], color=colour, linewidth=1.0, zorder=2
    )
    marked = {tried.gpus for tried in (one.smallest, one.surest) if tried is not None} | {best[0].gpus, best[-1].gpus}
    for tried in shown:
        if tried.gpus in marked:
            axes.annotate(
                f"{tried.gpus:,}",
                (tried.run_s / DAY_S, cost(tried)),
                xytext=(3, 4),
                fontsize=8,
                textcoords="offset points",
                color=colour,
            )
