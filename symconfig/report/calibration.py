"""Constants of a GPU that `symconfig calibrate` or `measure` fitted, and how well they explain what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from symconfig.descriptor.cluster import Kernels
from symconfig.descriptor.document import shorten
from symconfig.format import gb_per_s, grouped, percent, picked, several, signed
from symconfig.measured.calibrate import Calibration
from symconfig.measured.fit import FORM_ERROR, Fit, Parameter
from symconfig.measured.gpu.kernel_fit import Attention, HostCopy, KernelFit, KernelTimes, Launch, Product, Row, Stream
from symconfig.report.grid import Block, Grid, present

_WORDS = {
    "gemm_efficiency": "large matrix products: share of the peak FLOP/s",
    "gemm_efficiency_low": "the same in fp8 and fp4",
    "gemm_k_half": "inner dimension at which a matrix product reaches half of that",
    "hbm_efficiency": "element-wise work: share of the memory bandwidth",
    "launch_s": "seconds of the shortest kernel",
    "attention_efficiency": "attention, forward: share of the peak FLOP/s",
    "attention_backward_ratio": "attention, backward: its rate over the forward one's",
    "link_efficiency": "large collectives within a node: share of the bandwidth",
    "network_efficiency": "large collectives across nodes: share of the bandwidth",
}

assert _WORDS.keys() == Kernels.model_fields.keys()

HARDLY = 0.9  # of the error before: a fit that leaves more has found no constant that explains it


def calibration_blocks(calibrations: Sequence[Calibration], remarks: Sequence[str]) -> list[Block]:
    """Return for each GPU type the table of its constants, that of errors by source, sentences on the total error and
    on constants far from their priors, and at the end the remarks; empty parts are left out.
    """
    result: list[Block] = []
    for calibration in calibrations:
        title = f"Constants of {calibration.cluster.name}, from {several(calibration.rows, 'run')}"
        shown = constants(title, calibration.parameters, calibration.fit)
        result += [shown, _errors(calibration), _summary(calibration), "\n".join(left_priors(calibration))]
    return present(*result, "\n".join(remarks))


def constants(title: str, parameters: Sequence[Parameter], fit: Fit) -> Grid:
    """Return the table of fitted constants: start value, fitted value, relative uncertainty, and
    meaning with "at its bound" if the fit stopped there.
    """
    rows = []
    for p, value, spread in zip(parameters, fit.values, fit.uncertainty, strict=True):
        bound = "; at its bound" if not p.low * 1.001 < value < p.high * 0.999 else ""
        rows.append((p.name, f"{p.value:.3g}", f"{value:.3g}", percent(spread, 0), f"{_WORDS[p.name]}{bound}"))
    return Grid(("constant", "start", "fitted", "+-", "is"), tuple(rows), left=(0, 4), title=title)


def constants_data(parameters: Sequence[Parameter], fit: Fit) -> dict[str, Any]:
    """Return {name: {before, value, uncertainty}} of fitted constants; uncertainty is relative."""
    return {
        p.name: {"before": p.value, "value": float(f"{value:.6g}"), "uncertainty": float(f"{spread:.3g}")}
        for p, value, spread in zip(parameters, fit.values, fit.uncertainty, strict=True)
    }


def _errors(calibration: Calibration) -> Grid:
    """Return the table of mean absolute errors of the step time by source: runs, models, errors before and after the
    fit, and of a fit without the model ("-" if there is only one) and without the source.
    """
    rows = (
        {
            "source": e.source,
            "runs": str(e.n),
            "models": str(e.models),
            "before": percent(e.before),
            "after": percent(e.after),
            "model left out": "-" if e.left_out is None else percent(e.left_out),
            "source left out": percent(e.unseen),
        }
        for e in calibration.sources
    )
    return Grid.of(rows, "Mean absolute error of the step time", words=("source",))


def left_priors(calibration: Calibration) -> list[str]:
    """Return a sentence (`far_from_prior`) for each constant that the fit moved far from its prior; [] if none is."""
    return [
        far_from_prior(
            f"{item.constant} of {calibration.cluster.name}, {item.value:.3g},",
            item.deviations,
            (item.prior, item.uncertainty),
            dict(item.rows),
        )
        for item in calibration.left
    ]


def far_from_prior(what: str, deviations: float, prior: tuple[float, float], rows: Mapping[str, float]) -> str:
    """Return the sentence that a constant is far from its prior. what: the constant and its value; deviations: how far,
    in standard deviations, negative below; prior: (value, relative uncertainty); rows: {run: share of the pull}.
    """
    side = "below" if deviations < 0 else "above"
    pulling = ", ".join(f"{name} ({percent(share)})" for name, share in rows.items())
    return (
        f"{what} is {abs(deviations):.1f} deviations {side} its prior of {prior[0]:.3g} +- {percent(prior[1])}. "
        f"The runs that pull it most: {pulling}."
    )


def _summary(calibration: Calibration) -> str:
    """Return sentences on the total error and on that of models left out of the fit, with their ratio. If all runs are
    of one model: that none could be left out, and, if the error is above FORM_ERROR and the fit removes little of it,
    that it hardly helps.
    """
    if calibration.left_out is None:
        text = "All runs are of one model, so none could be left out: how this carries over to others is not known."
        if calibration.before > FORM_ERROR and calibration.after > HARDLY * calibration.before:
            text += f"\nThe fit hardly helps: constants do not explain {percent(calibration.before)}."
        return text
    ratio = calibration.left_out / calibration.after
    return (
        f"Over all runs {percent(calibration.after)}; {percent(calibration.left_out)} ({ratio:.2f} x) for each model "
        "by a fit that did not see it."
    )


def calibration_data(calibrations: Sequence[Calibration], remarks: Sequence[str]) -> dict[str, Any]:
    """Return the calibrations as JSON, symconfig.calibration/1: of each cluster the number of runs, constants, those
    far from their priors, errors (`mape`: before, after, of models left out), and errors by source; and the remarks.
    """
    return {
        "schema": "symconfig.calibration/1",
        "clusters": [
            {
                "cluster": calibration.cluster.name,
                "rows": calibration.rows,
                "constants": constants_data(calibration.parameters, calibration.fit),
                "left_priors": [
                    {
                        **picked(item, "constant", "prior", "uncertainty"),
                        "value": float(f"{item.value:.6g}"),
                        "deviations": round(item.deviations, 2),
                        "rows": [{"id": name, "share": round(share, 3)} for name, share in item.rows],
                    }
                    for item in calibration.left
                ],
                "mape": picked(calibration, "before", "after", "left_out"),
                "sources": [
                    {"name": e.source, **picked(e, "n", "models", "before", "after", "left_out", "unseen")}
                    for e in calibration.sources
                ],
            }
            for calibration in calibrations
        ],
        "remarks": list(remarks),
    }


_BYTES = 2  # of a 16-bit element

_REASON = 90  # characters of a reason, which may be torch's own words

UNSTEADY = 0.1  # spread from which a kernel's time is doubtful


def kernel_blocks(times: KernelTimes, fit: KernelFit | None) -> list[Block]:
    """Return the table of measured rates by family, the table of constants if there is a fit, and the remarks."""
    result: list[Block] = [_rates(times, fit)]
    if fit is not None:
        title = f"Constants of {fit.cluster.name}, from {len(fit.rows)} kernels"
        result.append(constants(title, fit.parameters, fit.fit))
    return [*result, "\n".join(_remarks(times, fit))]


def _rates(times: KernelTimes, fit: KernelFit | None) -> Grid:
    """Return the table of kernels by family: number, median and best rate (for launches the shortest time), median
    spread, and with a fit the model's errors ("-" for families without a formula).
    """
    errors = {
        each.family: (
            percent(each.before),
            signed(each.worst_before, 0),
            percent(each.after),
            signed(each.worst_after, 0),
        )
        for each in (fit.families if fit else ())
    }
    rows = []
    for family, mine in grouped((row.what.family, row) for row in times.rows).items():
        values = [_rate(row)[0] for row in mine]
        best = min(values) if isinstance(mine[0].what, Launch) else max(values)
        spread = median(row.spread for row in mine)
        figures = (f"{median(values):.4g}", f"{best:.4g}", _rate(mine[0])[1], percent(spread))
        rows.append((family, str(len(mine)), *figures, *(errors.get(family, ("-",) * 4) if fit else ())))
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


def _remarks(times: KernelTimes, fit: KernelFit | None) -> Iterator[str]:
    """Yield remarks. With a fit: that single kernels are not a step, that another GPU was measured than the cluster's,
    and the host link's rates; always: the number of unsteady kernels, skipped ones by reason, and the notes; only what
    applies.
    """
    if fit is not None:
        yield "Single kernels do not wait for each other as those of a step do: `symconfig calibrate` fits whole runs."
        if times.rig.product != fit.cluster.gpu.product:
            yield (
                f"These are times of {times.rig.product}, held against the peaks of {fit.cluster.name}: "
                f"{fit.cluster.gpu.product}."
            )
        if rates := [row.what.bytes_ / row.seconds for row in times.rows if isinstance(row.what, HostCopy)]:
            yield (
                f"Host link: {gb_per_s(min(rates))} to {gb_per_s(max(rates))} GB/s measured; the cluster has "
                f"{gb_per_s(fit.cluster.host.link_bytes_per_s.value)} (host.link_bytes_per_s)."
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


def kernel_data(times: KernelTimes, fit: KernelFit | None) -> dict[str, Any]:
    """Return the JSON, symconfig.kernel_fit/1: rig, cluster, constants, errors by family, measured rows, skipped ones
    and notes. Without `fit` cluster, constants and families are None; with it each row also has the model's seconds
    before and after the fit, None if it was not fitted.
    """
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
    # Of a row that was fitted, the model's seconds before the fit and after it.
    pairs = zip(fit.before_s, fit.after_s, strict=True)
    seconds = dict(zip(map(id, fit.rows), ((float(one), float(other)) for one, other in pairs), strict=True))
    for row, fields in zip(times.rows, data["rows"], strict=True):
        fields["before_s"], fields["after_s"] = seconds.get(id(row), (None, None))
    return data
