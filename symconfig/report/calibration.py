"""What `symconfig calibrate` fitted, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from symconfig.descriptor.cluster import Kernels
from symconfig.format import percent, picked, several
from symconfig.measured.calibrate import Calibration
from symconfig.measured.fit import FORM_ERROR, Fit, Parameter
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


def blocks(calibrations: Sequence[Calibration], remarks: Sequence[str]) -> list[Block]:
    """Return for each GPU type its constants, errors and far priors, and at the end the remarks."""
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
    """Return the table of mean absolute errors of the step time by source: before and after the fit, with the model
    or the source left out.
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
    """Return a sentence for each constant that the fit moved far from its prior, with the runs that pull it."""
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
    """Return the sentence on one constant. prior: (value, relative uncertainty); rows: share of the pull by run."""
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


def to_dict(calibrations: Sequence[Calibration], remarks: Sequence[str]) -> dict[str, Any]:
    """Return the calibrations as JSON, symconfig.calibration/1: of each cluster rows, constants, far priors, errors
    (`mape`) and sources; remarks.
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
