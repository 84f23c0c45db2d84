"""What is believed of a GPU's constants before a run of it was seen: measured kernels, and what other GPUs do.

The logarithm of a constant is normal: of any GPU around a broad guess, of a generation around that, of a GPU type
around its generation. Kernels of a type observe its constant, so a type without them borrows from its generation, and
a generation without them from all others, each with the uncertainty of the step between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, hypot, log, sqrt
from typing import Annotated, Literal

from pydantic import Field

from symconfig.descriptor.cluster import SHARES, ClusterDescriptor, Precisions
from symconfig.descriptor.document import load_yaml_strict
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.strict import PositiveInt, Strict, validate
from symconfig.resources import data_dir
from symconfig.solve.interval import Relative, posterior
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
class Prior:
    """uncertainty: relative standard deviation. basis: what it rests on, in words."""

    value: float
    uncertainty: float
    basis: str = ""


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


def priors(cluster: ClusterDescriptor) -> dict[str, Prior]:
    """Return the prior of each kernel constant of the cluster's GPU, from measured kernels of related GPUs. Its
    uncertainty includes how far trainings differ from measured kernels. Constants that are no fraction of a peak have
    the same prior for all GPUs of a generation. Values are rounded (3 and 2 digits).
    """
    seen, spread, generation = _observed(), kernel_priors().spread, cluster.gpu.architecture
    result = {}
    for name in ANY_GPU:
        mine = gpu_type(cluster) if name in SHARES else ()
        kernels = believed(name, mine, generation, seen.get(name, ()))
        uncertainty = hypot(kernels.uncertainty, spread.get(name, 0.0))
        result[name] = Prior(
            significant(kernels.value, 3), significant(uncertainty, 2), _basis(mine, generation, seen.get(name, ()))
        )
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


def believed(name: str, mine: GpuType, generation: str, seen: Sequence[Observed]) -> Prior:
    """Return the prior of a constant for one GPU type: the posterior, in logarithms, of a tree any GPU – generation –
    type around ANY_GPU, observed at the measured types. mine: (): no type, for a constant of a whole generation. seen:
    measured types; empty: ANY_GPU itself. The uncertainty is relative; basis stays empty.
    """
    value, width = ANY_GPU[name]
    known = [
        Relative((_ANY, item.generation, item.type), log(item.constant.value / value), item.constant.uncertainty**2)
        for item in seen
    ]
    mean, variance = posterior((_ANY, generation, mine), known, [width**2 / STEPS] * STEPS)
    return Prior(value * exp(mean), sqrt(variance))


GpuType = tuple[object, ...]


def gpu_type(cluster: ClusterDescriptor) -> GpuType:
    """Return a key that clusters share if their GPUs share one set of constants: architecture, compute units, and each
    precision's peak but fp32's over fp16's (to 0.01; None without it). Memory, network and power may differ.
    """
    gpu = cluster.gpu
    peaks = (getattr(gpu.peak_flops, name) for name in Precisions.model_fields if name != "fp32")
    return (gpu.architecture, gpu.compute_units, *(p and round(p.value / gpu.peak_flops.fp16.value, 2) for p in peaks))
