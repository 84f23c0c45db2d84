"""The README's tables of accuracy, from what `make accuracy` recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]


def markdown(record: Mapping[str, Any]) -> str:
    """Tables of step time, memory, out-of-memory, ranking, and models left out. Ends with a newline."""
    sources = record["sources"]
    parts = (
        _table(("step time", "rows", "mean error", "bias", "within 10 %", "worst"), _times(sources)),
        _table(("peak memory", "rows", "mean error", "bias", "within 10 %", "most too low"), _memory(sources)),
        _table(("out of memory, at no margin", "ran out", "found", "ran", "false alarms"), _ooms(sources)),
        _table(("choosing in a sweep", "plans", "Kendall's tau", "the pick is slower than the best by", "error of the "
                "median time"), _sweeps(sources)),
        _table(("constants of", "runs", "models", "mean error, fitted", "each model left out of the fit", "ratio"),
               _left_out(record["left_out"])),
    )
    return "\n".join(part for part in parts if part)


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    rule = "|---" + "|---:" * (len(headers) - 1) + "|"
    return "\n".join([f"| {' | '.join(headers)} |", rule, *lines]) + "\n"


def _parts(source: Figures, what: str) -> Iterable[tuple[str, Figures]]:
    """Rows that state everything and rows that do not, apart."""
    for name, mark in (("stated", ""), ("assumed", " *")):
        if source[name][what]:
            yield source["name"] + mark, source[name][what]


def _times(sources: Sequence[Figures]) -> Iterable[Sequence[str]]:
    for source in sources:
        for name, found in _parts(source, "time"):
            yield (name, str(found["n"]), _percent(found["mape"]), _signed(found["bias"]), _whole(found["within_10"]),
                   _percent(found["max"]))
        if source["layer"]:
            found = source["layer"]
            yield (f"{source['name']}, single layers", str(found["n"]), _percent(found["mape"]),
                   _signed(found["bias"]), _whole(found["within_10"]), _percent(found["max"]))


def _memory(sources: Sequence[Figures]) -> Iterable[Sequence[str]]:
    for source in sources:
        for name, found in _parts(source, "memory"):
            yield (name, str(found["n"]), _percent(found["mape"]), _signed(found["bias"]), _whole(found["within_10"]),
                   _percent(found["worst_under"]))


def _ooms(sources: Sequence[Figures]) -> Iterable[Sequence[str]]:
    for source in sources:
        found = source["oom"]
        if found and (found["ran_out"] or found["false_oom"]):
            recall = "" if found["recall"] is None else f"{found['found']} ({_percent(found['recall'])})"
            yield (source["name"], str(found["ran_out"]), recall, str(found["ran"]),
                   f"{found['false_oom']} ({_percent(found['false_oom_rate'])})")


def _sweeps(sources: Sequence[Figures]) -> Iterable[Sequence[str]]:
    for source in sources:
        for found in source["sweeps"]:
            regret = found["regret"]
            said = "it runs out of memory" if found["pick_ran_out"] else "-" if regret is None else _percent(regret)
            yield (found["name"], str(found["n"]), f"{found['kendall_tau']:.2f}", said, _percent(found["median_mape"]))


def _left_out(fits: Sequence[Figures]) -> Iterable[Sequence[str]]:
    for found in fits:
        left = found["left_out"]
        ratio = "" if left is None else f"{left / found['fitted']:.2f}"
        yield (found["cluster"], str(found["n"]), str(found["models"]), _percent(found["fitted"]),
               "only one model" if left is None else _percent(left), ratio)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _whole(share: float) -> str:
    return f"{100 * share:.0f} %"
