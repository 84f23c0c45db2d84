"""A running job's log beside its prediction, for a person."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from symconfig.format import gib, percent, picked, seconds, several, signed
from symconfig.measured.comparison import CLOSE, MOST, Comparison
from symconfig.report.grid import Block, Grid, present

_SHOWN = 4  # causes


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data; `predicted` is None for a part that is not predicted by itself."""
    found = comparison
    return {
        "file": found.log.path,
        "steps": None if found.log.steady is None else asdict(found.log.steady),
        "interval_s": list(found.interval),
        "seconds": [asdict(part) for part in found.seconds],
        "bytes": [asdict(part) for part in found.memory],
        "differences": [asdict(one) for one in found.differences],
        "causes": [asdict(one) for one in found.causes],
        "remarks": list(found.log.remarks),
    }


def blocks(comparison: Comparison) -> list[Block]:
    """Return the table of predicted and measured figures, the options that differ, the causes, and what was lost."""
    log, found = comparison.log, comparison
    steady = "no steady step" if log.steady is None else several(log.steady.n, "logged time")
    written = [*((" s", seconds, part) for part in found.seconds), *((" GiB", gib, part) for part in found.memory)]
    rows = (
        {
            "": part.name + unit,
            "predicted": "" if part.predicted is None else text(part.predicted),
            "log": text(part.measured),
            "difference": "" if part.ratio is None else signed(part.ratio - 1),
        }
        for unit, text, part in written
    )
    differences = (picked(one, "option", "script", "log") for one in found.differences)
    causes = (
        {
            "assumption": one.name,
            "assumed": f"{one.assumed:.2f}",
            "would have to be": f"{one.needed:.2f}",
            "deviations": f"{one.deviations:.1f}",
        }
        for one in found.causes[:_SHOWN]
    )
    other = "The job runs with other options than the script has"
    return present(
        Grid.of(rows, f"Beside {log.path} ({steady})", words=("",)) if written else "",
        Grid.of(differences, other, words=("option", "script", "log")) if found.differences else "",
        "\n".join(_sentences(found)),
        Grid.of(causes, "Any of these alone would explain the step", words=("assumption",)) if found.causes else "",
    )


def _sentences(found: Comparison) -> Iterator[str]:
    """Yield sentences on the step against its interval, on the options that differ, and on the time that is lost."""
    log = found.log
    if found.seconds:
        low, high = found.interval
        where = "within" if found.as_usual else "outside of"
        yield f"The step is {where} the 90 % interval of its prediction, {seconds(low)} to {seconds(high)} s."
    if found.differences:
        yield "The prediction is of the script; first audit the script with the options that the log prints."
    if not found.causes and not found.is_close:
        yield f"No assumption explains the step alone, within a factor of {MOST:g}."
    if log.steady is not None and log.steady.lost > CLOSE:
        yield f"{percent(log.steady.lost)} of the time is lost in steps slower than the median."
    yield from (f"{remark[0].upper()}{remark[1:]}." for remark in log.remarks)
