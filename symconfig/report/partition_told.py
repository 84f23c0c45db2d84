"""What Megatron-LM and DeepSpeed can be told of a partition, and what is lost where that is not the partition."""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.format import gib
from symconfig.report.grid import Block, Grid
from symconfig.report.partition_said import Contents, Telling
from symconfig.solve.partition.degrees import AXES, Way

MOST = 6  # differences that are shown


def meeting(report: Contents) -> list[Block]:
    """Show what can be expressed exactly, with the planner's pins.

    Else the cheapest that can, and what departs from it.
    """
    exact = [telling for telling in report.tellings if telling.one.exact]
    other = [telling for telling in report.tellings if not telling.one.exact]
    shown: list[Block] = []
    if exact:
        names = " and ".join(telling.one.told.framework.label for telling in exact)
        shown.append(f"{names} can be told exactly this: {words(exact[0].one.told.way)}.{_pinned(exact[0])}")
    if other:
        shown.append(_cheapest(report, other))
        shown.append(_departing(other[0]) + ("" if exact else _pinned(other[0])))
    for name, why in report.untold.items():
        shown.append(f"{name} can be told no split of this over these GPUs{f': {why}' if why else ''}.")
    return shown


def words(way: Way) -> str:
    """Spell degrees: `tp 8, dp 4, sp, ZeRO 1`"""
    named = [(name, getattr(way.degrees, name)) for name in AXES]
    split = [f"{name} {value}" for name, value in named if value > 1] or ["one GPU"]
    split += ["Ulysses"] if way.degrees.cp > 1 and way.cp_comm == "a2a" else []
    split += ["sp"] if way.sequence_parallel else []
    return ", ".join([*split, f"ZeRO {way.zero}"])


def _cheapest(report: Contents, tellings: Sequence[Telling]) -> Grid:
    rows = []
    for telling in tellings:
        degrees = telling.one.told
        what = (degrees.framework.label, words(degrees.way), report.amount(degrees.cost))
        saved = f"{100 * (1 - report.partition.cost / degrees.cost):.1f} %"
        how = (str(degrees.training.turns), degrees.training.keep.value, "yes" if degrees.fits else "no")
        rows.append((*what, saved, gib(degrees.memory), *how))
    headers = ("framework", "degrees", report.unit, "this saves", "GiB", "microbatches", "keeps", "fits")
    title = "The cheapest that frameworks can be told where it is not this partition"
    return Grid(headers, tuple(rows), left=(0, 1, 6, 7), title=title)


def _departing(telling: Telling) -> str:
    every, degrees = telling.one.differences, telling.one.told
    lines = [f"What this partition does instead of {degrees.framework.label}'s {words(degrees.way)}:"]
    lines += [f"  {difference}" for difference in every[:MOST]]
    if len(every) > MOST:
        lines.append(f"  and {len(every) - MOST} others")
    return "\n".join(lines)


def _pinned(telling: Telling) -> str:
    if not telling.pins:
        return ""
    pins = [f"--pin {name}={value}" for name, value in telling.pins.items()]
    return "\n  " + " ".join(["symconfig plan … --backend", telling.one.told.framework.value, *pins])
