"""Tables of scores against measured runs, from sources in the schema of `symconfig validate --json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from symconfig.format import count, percent, signed
from symconfig.report.grid import Grid

Figures = Mapping[str, Any]
_NOTHING = "-"


def errors(sources: Sequence[Figures]) -> tuple[Grid, ...]:
    """Return the tables of errors of step time, layer time and memory."""
    return (
        _errors(sources, "time", "rows", "Seconds of a step, predicted against measured"),
        _errors(sources, "layer", "passes", "Seconds of one layer's forward and backward pass"),
        _errors(sources, "memory", "rows", "Peak memory, predicted against measured"),
    )


def _errors(sources: Sequence[Figures], quantity: str, counted: str, title: str) -> Grid:
    """Return the table of one quantity's errors by source; memory has its worst underestimate in place of its worst
    error.
    """
    memory = quantity == "memory"
    last = ("too low by", "lowest row") if memory else ("worst", "worst row")
    rows = (
        (
            name,
            count(each["n"]),
            percent(each["mape"]),
            signed(each["bias"]),
            percent(each["within_10"], 0),
            *((percent(each["worst_under"]), each["worst_under_id"] or "") if memory else _worst(each)),
        )
        for source in sources
        for name, each in _parts(source, quantity)
    )
    return Grid(("source", counted, "MAPE", "bias", "in 10 %", *last), tuple(rows), left=(0, 6), title=title)


def _worst(each: Figures) -> tuple[str, str]:
    return signed(each["worst"]), each["max_id"]


def _parts(source: Figures, quantity: str) -> Iterator[tuple[str, Figures]]:
    """Yield (name, errors) of a source, then of its fully stated and its assumed rows if it has both; "*" marks
    assumed options.
    """
    whole, stated, assumed = (part[quantity] for part in (source, source["stated"], source["assumed"]))
    if whole:
        yield source["name"] + ("" if stated or quantity == "layer" else " *"), whole
    if stated and assumed and quantity != "layer":
        yield "  fully stated", stated
        yield "  options assumed *", assumed


def out_of_memory(sources: Sequence[Figures]) -> Grid:
    """Return the table of recall and false alarms for runs that ran out of memory; sources without any are left out."""
    rows = (
        {
            "source": source["name"],
            "ran out": count(oom["ran_out"]),
            "found": count(oom["found"]),
            "recall": _share(oom["recall"]),
            "ran": count(oom["ran"]),
            "called out": count(oom["false_oom"]),
            "false alarms": _share(oom["false_oom_rate"]),
        }
        for source in sources
        if (oom := source["oom"]) and (oom["ran_out"] or oom["false_oom"])
    )
    title = "Out of memory at no safety margin, where runs ran out or were called so"
    return Grid.of(rows, title, words=("source",))


def _share(value: float | None) -> str:
    return _NOTHING if value is None else percent(value)


def sweeps(sources: Sequence[Figures]) -> Grid:
    """Return the table of how well each sweep's plans are ranked: Kendall's tau, MAPE and regret."""
    rows = (
        {
            "sweep": sweep["name"],
            "rows": count(sweep["n"]),
            "ran": count(sweep["timed"]),
            "tau": f"{sweep['kendall_tau']:.2f}",
            "MAPE": percent(sweep["mape"]),
            "the median's": percent(sweep["median_mape"]),
            "regret": _regret(sweep["regret"], sweep["pick_ran_out"]),
            "the fastest by prediction": sweep["pick"],
            "the choice's": _regret(sweep["choice_regret"], sweep["choice_ran_out"]),
        }
        for source in sources
        for sweep in source["sweeps"]
    )
    title = "Ranking of plans; the median's: its time as the only prediction"
    return Grid.of(rows, title, words=("sweep", "the fastest by prediction"))


def _regret(regret: float | None, ran_out: bool) -> str:
    if regret is not None:
        return percent(regret)
    return "runs out of memory" if ran_out else "not timed"
