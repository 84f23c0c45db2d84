"""The constants of a GPU type, fitted to measured runs; a cluster descriptor with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np

from symconfig.cost.machine import constants
from symconfig.descriptor.cluster import SHARES, ClusterDescriptor, Kernels, Quantity
from symconfig.measured.fit import BETWEEN_SOURCES, Array, Fit, Parameter, fit
from symconfig.measured.judge import Judged, timed_stage
from symconfig.measured.priors import priors
from symconfig.solve.predict import Timer
from symconfig.units import significant

BOUNDS: dict[str, tuple[float, float]] = {
    "gemm_efficiency": (0.2, 1.0),
    "gemm_efficiency_low": (0.2, 1.0),
    "gemm_k_half": (10.0, 4000.0),
    "hbm_efficiency": (0.3, 0.95),
    "launch_s": (1e-6, 1e-4),
    "attention_efficiency": (0.1, 0.95),
    "attention_backward_ratio": (0.3, 1.2),
    "link_efficiency": (0.1, 1.0),
    "network_efficiency": (0.1, 1.0),
}
FAR = 2.0  # deviations of a prior beyond which a constant has left it
PULLING = 5  # rows that are named
LEAST_UNCERTAINTY = 0.03  # of a fitted constant: the form of the model is not better than this


@dataclass(frozen=True, slots=True)
class SourceErrors:
    """Mean absolute relative errors of one source's n rows.

    left_out: by fits that did not see the row's model, None where no other model was run on this GPU; unseen: by the
    fit that did not see the source.
    """

    source: str
    models: int
    n: int
    before: float
    after: float
    left_out: float | None
    unseen: float


@dataclass(frozen=True, slots=True)
class Left:
    """A fitted constant far from its prior. deviations: in standard deviations of the prior, negative below it.

    rows: the rows with the largest influence, each with its fraction of the change.
    """

    constant: str
    prior: float
    uncertainty: float
    value: float
    deviations: float
    rows: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Calibration:
    """One GPU type. kernels: fitted. left: the constants far from what was believed, the farthest first."""

    cluster: ClusterDescriptor
    kernels: Kernels
    parameters: tuple[Parameter, ...]
    sources: tuple[SourceErrors, ...]
    left: tuple[Left, ...]
    rows: int
    fit: Fit

    @property
    def before(self) -> float:
        """Return the mean absolute relative error of the step time over all rows, with the cluster's constants."""
        return _mean([(e.n, e.before) for e in self.sources])

    @property
    def after(self) -> float:
        return _mean([(e.n, e.after) for e in self.sources])

    @property
    def left_out(self) -> float | None:
        """Return the mean error of rows predicted by fits without their model, or None if all rows are of one model."""
        if any(e.left_out is None for e in self.sources):
            return None
        return _mean([(e.n, e.left_out) for e in self.sources if e.left_out is not None])

    @property
    def profile(self) -> ClusterDescriptor:
        """Return the cluster descriptor with the fitted constants."""
        return self.cluster.model_copy(update={"kernels": self.kernels})


def calibrate(
    cluster: ClusterDescriptor, judged: Sequence[tuple[str, Judged]], command: str, from_scratch: bool = False
) -> Calibration:
    """Fit those constants of a GPU type that are fractions of a peak (SHARES) and have an uncertainty above 0, to
    seconds.

    Args: judged: (source, row) of runs with seconds on GPUs of this type. command: named as the source of the fitted
    constants. from_scratch: start from priors instead of the cluster's constants, with an offset for each source if
    there are several. Otherwise all runs count as one site, whose offset is part of its constants, and the constants'
    uncertainty includes that between sources.
    """
    rows, sources = [item for _, item in judged], [source for source, _ in judged]
    measured = np.log([item.time[1] for item in rows if item.time])
    kernels = _believed(cluster) if from_scratch else cluster.kernels
    believed = {name: each for name in SHARES if (each := getattr(kernels, name)) and each.uncertainty > 0}
    parameters = tuple(
        Parameter(name, each.value, hypot(each.uncertainty, 0.0 if from_scratch else BETWEEN_SOURCES), *BOUNDS[name])
        for name, each in believed.items()
    )
    evaluate = _evaluator(rows, kernels, parameters)
    several = from_scratch and len(set(sources)) > 1
    leave_out = [[item.row.model.name for item in rows], sources]
    fitted = fit(evaluate, measured, parameters, leave_out, sources if several else ())
    stated = constants(cluster.kernels)
    before = evaluate(np.log(np.array([[stated[p.name]] for p in parameters], dtype=np.float64)))[:, 0]
    return Calibration(
        cluster,
        with_fitted(kernels, parameters, fitted, f"fitted: {command}"),
        parameters,
        _errors(judged, measured, before, fitted),
        left_priors(parameters, fitted, [item.row.id for item in rows]),
        len(rows),
        fitted,
    )


def left_priors(parameters: Sequence[Parameter], fitted: Fit, ids: Sequence[str]) -> tuple[Left, ...]:
    """Return the constants more than FAR standard deviations from their prior, in logarithms, farthest first. Each has
    up to PULLING rows (id, share of the logarithmic change), largest first; rows that pull the other way are left out.
    """
    result = []
    for p, value, pull in zip(parameters, fitted.values, fitted.pull, strict=True):
        way = float(np.log(value / p.value))
        if abs(way) <= FAR * p.uncertainty:
            continue
        shares = pull / way
        most = np.argsort(-shares, kind="stable")[:PULLING]
        rows = tuple((ids[index], float(shares[index])) for index in most if shares[index] > 0)
        result.append(Left(p.name, p.value, p.uncertainty, float(value), way / p.uncertainty, rows))
    return tuple(sorted(result, key=lambda item: -abs(item.deviations)))


def _mean(parts: Sequence[tuple[int, float]]) -> float:
    return sum(n * value for n, value in parts) / sum(n for n, _ in parts)


def _believed(cluster: ClusterDescriptor) -> Kernels:
    """Return the cluster's kernel constants with those that it has replaced by their priors; others stay unset."""
    update = {
        name: Quantity(value=prior.value, source=prior.basis, uncertainty=prior.uncertainty)
        for name, prior in priors(cluster).items()
        if getattr(cluster.kernels, name)
    }
    return cluster.kernels.model_copy(update=update)


def _evaluator(rows: Sequence[Judged], kernels: Kernels, parameters: Sequence[Parameter]) -> Callable[[Array], Array]:
    """Return a function from log constants [parameters, n] to log seconds [rows, n].

    Constants that are not among the parameters are those of `kernels`. Of a row's configuration and its alternatives
    the fastest counts, chosen anew for each of the n, whether or not it fits in memory.
    """
    timers = []
    for item in rows:
        what, stage = item.case, timed_stage(item.row)
        cluster = what.cluster.model_copy(update={"kernels": kernels})
        timers.append([Timer(what.model, cluster, each, stage) for each in (what.configuration, *what.others)])

    def evaluate(theta: Array) -> Array:
        """Return log seconds [rows, n] at log constants [parameters, n]."""
        values = dict(zip([p.name for p in parameters], np.exp(theta), strict=True))
        n = theta.shape[1]
        result = np.empty((len(rows), n))
        for index, mine in enumerate(timers):
            result[index] = np.log(np.min([timer.step_seconds(values, n) for timer in mine], axis=0))
        return result

    return evaluate


def with_fitted(kernels: Kernels, parameters: Sequence[Parameter], result: Fit, source: str) -> Kernels:
    """Return the constants with the fitted values and their relative uncertainties, at least LEAST_UNCERTAINTY. source:
    recorded as the source of the fitted constants.
    """
    update = {
        p.name: Quantity(
            value=significant(value, 3), source=source, uncertainty=significant(max(spread, LEAST_UNCERTAINTY), 2)
        )
        for p, value, spread in zip(parameters, result.values, result.uncertainty, strict=True)
    }
    return kernels.model_copy(update=update)


def _errors(judged: Sequence[tuple[str, Judged]], measured: Array, before: Array, fit: Fit) -> tuple[SourceErrors, ...]:
    """Return, for each source, the mean absolute relative errors of the step time before and after the fit. Also by
    fits without the row's model (None if all rows are of one model) and without the source.
    """

    def mape(log_s: Array, chosen: Sequence[int]) -> float:
        return float(np.mean(np.abs(np.exp(log_s[chosen] - measured[chosen]) - 1)))

    result = []
    every = {item.row.model.name for _, item in judged}
    for source in dict.fromkeys(source for source, _ in judged):
        mine = [index for index, (name, _) in enumerate(judged) if name == source]
        models = {judged[index][1].row.model.name for index in mine}
        without_model, without_source = fit.left_out_log_s
        result.append(
            SourceErrors(
                source=source,
                models=len(models),
                n=len(mine),
                before=mape(before, mine),
                after=mape(fit.log_s, mine),
                left_out=mape(without_model, mine) if len(every) > 1 else None,
                unseen=mape(without_source, mine),
            )
        )
    return tuple(result)
