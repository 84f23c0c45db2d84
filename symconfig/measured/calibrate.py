"""The constants of a GPU type: what is believed before a run of it was seen, and their fit to measured runs.

The logarithm of a constant is normal: of any GPU around a broad guess, of a generation around that, of a GPU type
around its generation. Kernels of a type observe its constant, so a type without them borrows from its generation, and
a generation without them from all others, each with the uncertainty of the step between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, hypot, log, sqrt
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from symconfig.cost.machine import constants
from symconfig.descriptor.cluster import SHARES, ClusterDescriptor, Kernels, Precisions, Quantity
from symconfig.descriptor.document import load_yaml_strict
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.strict import PositiveInt, Strict, validate
from symconfig.format import grouped
from symconfig.measured.fit import BETWEEN_SOURCES, Array, Fit, Parameter, fit
from symconfig.measured.judge import Judged, timed_stage
from symconfig.resources import data_dir
from symconfig.solve.interval import Relative, posterior
from symconfig.solve.predict import Timer
from symconfig.units import significant

# What is believed of any GPU: value, and how far GPUs differ from it as a relative standard deviation.
ANY_GPU: dict[str, tuple[float, float]] = {
    "gemm_efficiency": (0.75, 0.2),
    "gemm_efficiency_low": (0.65, 0.25),
    "gemm_k_half": (400.0, 0.7),
    "hbm_efficiency": (0.78, 0.15),
    "launch_s": (6e-6, 0.6),
    "attention_efficiency": (0.5, 0.3),
    "attention_backward_ratio": (0.8, 0.2),
    "link_efficiency": (0.75, 0.25),
    "network_efficiency": (0.8, 0.2),
}
STEPS = 3  # that share that variance: how far off the guess is, what sets a generation apart, and a GPU type in it
_ANY = ()  # the level that all GPUs share
_FILE = "kernel_priors.yaml"  # of the zoo


class Distilled(Strict):
    """A constant of one GPU type as its kernels have it. uncertainty: relative, of that."""

    value: Annotated[float, Field(gt=0)]
    uncertainty: Annotated[float, Field(gt=0, le=2)]
    rows: PositiveInt
    sources: tuple[str, ...] = Field(min_length=1)


class DistilledType(Strict):
    """cluster: a zoo name, for all clusters with GPUs of its type."""

    cluster: str
    constants: dict[str, Distilled]


class KernelPriors(Strict):
    """The constants that published measurements of kernels give.

    sources: what their short names stand for. spread: how far a training's kernels may be from the measured ones.
    """

    schema_: Literal["symconfig.kernel_priors/1"] = Field(alias="schema")
    sources: dict[str, str]
    spread: dict[str, Annotated[float, Field(gt=0)]]
    gpus: tuple[DistilledType, ...]


@dataclass(frozen=True, slots=True)
class Observed:
    """A constant of one GPU type, as its kernels have it."""

    type: GpuType
    generation: str
    constant: Distilled


@cache
def kernel_priors() -> KernelPriors:
    """Return the zoo's kernel measurements; cached. Raise InputError if the file is invalid."""
    return validate(load_yaml_strict(data_dir("model_zoo") / _FILE), KernelPriors)


def priors(cluster: ClusterDescriptor) -> dict[str, Quantity]:
    """Return the prior of each kernel constant of the cluster's GPU, from measured kernels of related GPUs. Its
    uncertainty includes how far trainings differ from measured kernels. Constants that are no fraction of a peak have
    the same prior for all GPUs of a generation. Values are rounded (3 and 2 digits).
    """
    result = {}
    for name in ANY_GPU:
        mine = gpu_type(cluster) if name in SHARES else ()
        prior = believed(name, mine, cluster.gpu.architecture, _observed().get(name, ()))
        uncertainty = significant(hypot(prior.uncertainty, kernel_priors().spread.get(name, 0.0)), 2)
        result[name] = Quantity(value=significant(prior.value, 3), source=prior.source, uncertainty=uncertainty)
    return result


@cache
def _observed() -> Mapping[str, tuple[Observed, ...]]:
    """Return all GPU types' measured constants by constant name; cached."""
    observed: dict[str, tuple[Observed, ...]] = {}
    for item in kernel_priors().gpus:
        cluster = load_cluster(item.cluster)
        for name, constant in item.constants.items():
            one = Observed(gpu_type(cluster), cluster.gpu.architecture, constant)
            observed[name] = (*observed.get(name, ()), one)
    return observed


def _basis(mine: GpuType, generation: str, seen: Sequence[Observed]) -> str:
    """Return in words what a prior rests on, the first that exists: the type's own kernels (number, sources), its
    generation's, other generations', or an assumption about any GPU.
    """
    own = next((item.constant for item in seen if item.type == mine), None)
    if own is not None:
        return f"{own.rows} kernel{'s' if own.rows > 1 else ''} ({', '.join(own.sources)})"
    if any(item.generation == generation for item in seen):
        return f"kernels of {generation} GPUs"
    return "kernels of other generations" if seen else "assumed of any GPU"


def believed(name: str, mine: GpuType, generation: str, seen: Sequence[Observed]) -> Quantity:
    """Return the prior of a constant for one GPU type; its source says in words what it rests on.

    It is the posterior, in logarithms, of a tree any GPU, generation, type around ANY_GPU, observed at the measured
    types. mine: (): no type, for a constant of a whole generation. seen: measured types; empty: ANY_GPU itself.
    """
    value, width = ANY_GPU[name]
    known = [
        Relative((_ANY, item.generation, item.type), log(item.constant.value / value), item.constant.uncertainty**2)
        for item in seen
    ]
    mean, variance = posterior((_ANY, generation, mine), known, [width**2 / STEPS] * STEPS)
    return Quantity(value=value * exp(mean), source=_basis(mine, generation, seen), uncertainty=sqrt(variance))


GpuType = tuple[object, ...]


def gpu_type(cluster: ClusterDescriptor) -> GpuType:
    """Return a key that clusters share if their GPUs share one set of constants: architecture, compute units, and each
    precision's peak but fp32's over fp16's (to 0.01; None without it). Memory, network and power may differ.
    """
    gpu = cluster.gpu
    peaks = (getattr(gpu.peak_flops, name) for name in Precisions.model_fields if name != "fp32")
    return (gpu.architecture, gpu.compute_units, *(p and round(p.value / gpu.peak_flops.fp16.value, 2) for p in peaks))


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
    """Return the fit of a GPU type's constants to the seconds of runs, with errors by source and what left its prior.

    Fitted are constants that are fractions of a peak (SHARES) and have an uncertainty above 0. judged: (source, row) of
    runs with seconds on GPUs of this type. command: named as the source of the fitted constants. from_scratch: start
    from priors instead of the cluster's constants, with an offset for each source if there are several. Otherwise all
    runs count as one site, whose offset is part of its constants, and the constants' uncertainty includes that between
    sources.
    """
    rows, sources = [item for _, item in judged], [source for source, _ in judged]
    measured = np.log([item.time[1] for item in rows if item.time])
    kernels = _with_priors(cluster) if from_scratch else cluster.kernels
    free = {name: each for name in SHARES if (each := getattr(kernels, name)) and each.uncertainty > 0}
    parameters = tuple(
        Parameter(name, each.value, hypot(each.uncertainty, 0.0 if from_scratch else BETWEEN_SOURCES), *BOUNDS[name])
        for name, each in free.items()
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


def _with_priors(cluster: ClusterDescriptor) -> Kernels:
    """Return the cluster's kernel constants with those that it has replaced by their priors; others stay unset."""
    known = {name: prior for name, prior in priors(cluster).items() if getattr(cluster.kernels, name)}
    return cluster.kernels.model_copy(update=known)


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
    for source, mine in grouped((source, index) for index, (source, _) in enumerate(judged)).items():
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
