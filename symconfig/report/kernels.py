"""What `symconfig measure` found: rates, constants, and how well those explain each family of kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from symconfig.descriptor.document import shorten
from symconfig.format import percent, picked, several, signed
from symconfig.measured.gpu.kernel_fit import FamilyErrors, KernelFit
from symconfig.measured.gpu.kernel_times import Attention, HostCopy, KernelTimes, Launch, Product, Row, Stream
from symconfig.report.calibration import constants, constants_data
from symconfig.report.grid import Block, Grid

_BYTES = 2  # of a 16-bit element
_REASON = 90  # characters of a reason, which may be torch's own words
UNSTEADY = 0.1  # spread from which a kernel's time is doubtful


def blocks(times: KernelTimes, fit: KernelFit | None) -> list[Block]:
    """Return the table of rates and errors by family, the constants and remarks; without `fit` only measured rates.
    Fits 120 columns.
    """
    result: list[Block] = [_rates(times, fit)]
    if fit is not None:
        title = f"Constants of {fit.cluster.name}, from {len(fit.rows)} kernels"
        result.append(constants(title, fit.parameters, fit.fit))
    return [*result, "\n".join(_remarks(times, fit))]


def _rates(times: KernelTimes, fit: KernelFit | None) -> Grid:
    """Return the table of kernels by family: number, median and best rate (for launches the shortest time), median
    spread, and with a fit the model's errors ("-" for families without a formula).
    """
    errors = {each.family: each for each in fit.families} if fit else {}
    rows = []
    for family in dict.fromkeys(row.what.family for row in times.rows):
        mine = [row for row in times.rows if row.what.family == family]
        values = [_rate(row)[0] for row in mine]
        best = min(values) if isinstance(mine[0].what, Launch) else max(values)
        spread = median(row.spread for row in mine)
        figures = (f"{median(values):.4g}", f"{best:.4g}", _rate(mine[0])[1], percent(spread))
        rows.append((family, str(len(mine)), *figures, *(_errors(errors.get(family)) if fit else ())))
    compared = ("before", "worst", "after", "worst") if fit else ()
    headers = ("kernels", "n", "median", "best", "", "spread", *compared)
    return Grid(headers, tuple(rows), left=(0, 4), title=f"Kernels of {times.rig}")


def _rate(row: Row) -> tuple[float, str]:
    """Return (rate, unit) of a measurement: TFLOP/s, GB/s, or microseconds for launches."""
    if isinstance(row.what, Product | Attention):
        return row.what.flops / row.seconds / 1e12, "TFLOP/s"
    if isinstance(row.what, Stream):
        return _BYTES * row.what.moved / row.seconds / 1e9, "GB/s"
    if isinstance(row.what, HostCopy):
        return row.what.bytes_ / row.seconds / 1e9, "GB/s"
    return 1e6 * row.seconds, "us"


def _errors(errors: FamilyErrors | None) -> tuple[str, ...]:
    """Return the cells of a family's mean and worst error before and after the fit; four "-" for None."""
    if errors is None:
        return ("-",) * 4
    return (
        percent(errors.before),
        signed(errors.worst_before, 0),
        percent(errors.after),
        signed(errors.worst_after, 0),
    )


def _remarks(times: KernelTimes, fit: KernelFit | None) -> Iterator[str]:
    """Yield remarks: with a fit on single kernels, another GPU and the host link; the number of unsteady kernels;
    skipped ones by reason; the notes.
    """
    if fit is not None:
        yield "Single kernels do not wait for each other as those of a step do: `symconfig calibrate` fits whole runs."
        if times.rig.product != fit.cluster.gpu.product:
            yield (
                f"These are times of {times.rig.product}, held against the peaks of {fit.cluster.name}: "
                f"{fit.cluster.gpu.product}."
            )
        if rates := [_rate(row)[0] for row in times.rows if isinstance(row.what, HostCopy)]:
            yield (
                f"Host link: {min(rates):.1f} to {max(rates):.1f} GB/s measured; the cluster has "
                f"{fit.cluster.host.link_bytes_per_s.value / 1e9:.1f} (host.link_bytes_per_s)."
            )
    unsteady = sum(row.spread > UNSTEADY for row in times.rows)
    if unsteady:
        yield (
            f"{unsteady} of {len(times.rows)} kernels took {percent(UNSTEADY)} longer or shorter from one sample to "
            "the next: something else ran here."
        )
    for reason, count in Counter(item.reason for item in times.skipped).most_common():
        yield f"not measured: {several(count, 'kernel')}: {shorten(reason, _REASON)}"
    yield from times.notes


def to_dict(times: KernelTimes, fit: KernelFit | None) -> dict[str, Any]:
    """Return the JSON, symconfig.kernel_fit/1; constants and families are None without a fit."""
    data: dict[str, Any] = {
        "schema": "symconfig.kernel_fit/1",
        "rig": times.rig.model_dump(mode="json"),
        "cluster": fit.cluster.name if fit else None,
        "constants": None,
        "families": None,
        "rows": [row.model_dump(mode="json", by_alias=True) for row in times.rows],
        "skipped": [item.model_dump(mode="json", by_alias=True) for item in times.skipped],
        "notes": list(times.notes),
    }
    if fit is None:
        return data
    data["constants"] = constants_data(fit.parameters, fit.fit)
    names = ("n", "before", "worst_before", "after", "worst_after")
    data["families"] = [{"name": e.family, **picked(e, *names)} for e in fit.families]
    return data | {"rows": _with_model(times.rows, fit)}


def _with_model(rows: Sequence[Row], fit: KernelFit) -> list[dict[str, Any]]:
    """Return each row as JSON with the model's seconds before and after the fit, before_s and after_s; both None if the
    row was not fitted.
    """
    seconds = dict(zip((id(row) for row in fit.rows), zip(fit.before_s, fit.after_s, strict=True), strict=True))
    result = []
    for row in rows:
        before, after = seconds.get(id(row), (None, None))
        times = {"before_s": before, "after_s": after}
        result.append(
            row.model_dump(mode="json", by_alias=True)
            | {name: None if value is None else float(value) for name, value in times.items()}
        )
    return result
