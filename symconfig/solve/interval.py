"""How far a prediction may be off: what measured runs did that nothing was fitted to.

data/accuracy.json is written by `make accuracy` from published runs. Its ratios are measured over predicted, each
predicted by constants that were fitted without the run's source, and it says how runs and sources spread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from statistics import NormalDist, median
from typing import Any, Literal

import numpy as np

from symconfig.cost.lattice import Array
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import NO_MIXER
from symconfig.format import count, several
from symconfig.graph.model import parameters
from symconfig.solve.kin import Relative, posterior

Quantity = Literal["time", "memory"]
KINDS = {
    "dense": "dense models",
    "experts": "mixtures of experts",
    "sft": "fine-tuning of whole models",
    "adapter": "low-rank adapters",
    "small": "models below a billion parameters",
}
SMALL = 1e9  # parameters, below which a framework's own overhead dominates
# How sources' errors correlate: shares of variance common to a kind of model, common to a kind on a GPU
# architecture, and specific to a source. Chosen among several splits for the narrowest intervals.
SHARES = (0.1, 0.2, 0.7)
_QUANTILES = 100  # points by which a distribution is combined with another one
NINE_IN_TEN = (0.05, 0.95)  # quantiles at the ends of the 90 % interval
_DEVIATIONS = NormalDist().inv_cdf(NINE_IN_TEN[1])  # standard deviations from the mean to each end of the 90 % interval
# Added standard deviation of the log step time where mixer blocks replace attention: their kernels'
# times are off by a fifth on the GPUs where they were measured (cost/work.py), and are half of a layer's or less; no
# whole step of such a model was measured.
UNMEASURED_BLOCKS = 0.1
# The same on a GPU that is announced only, whose kernels are those of the generation before. The efficiency of matrix
# products, which are nine tenths of most steps, has a deviation of 0.14 over the ten GPUs of model_zoo/kernels.
ANNOUNCED = 0.15
NO_GPU = ""  # stands for the architecture of a GPU that nobody has measured
OF_MEDIAN = math.pi / 2  # variance of a median of many normal deviates, over that of their mean


@dataclass(frozen=True, slots=True)
class Ratios:
    """Measured over predicted, sorted, of one source's runs of one kind of model on one GPU architecture."""

    quantity: Quantity
    gpu: str
    kind: str
    source: str
    measured: tuple[float, ...]

    @property
    def middle(self) -> float:
        """Return the natural logarithm of the median ratio."""
        return math.log(median(self.measured))


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviations of log(measured / predicted): `run` within a source, `source` between sources.

    reach: by kind of model, how many standard deviations cover 90 % of the runs of an unseen source.
    """

    run: float
    source: float
    reach: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Interval:
    """The 90 % interval of measured over predicted for runs of an unseen source, and the data that it is based on."""

    low: float
    high: float
    basis: str


@cache
def kind(model: ModelDescriptor) -> str:
    """Return the kind of model, a key of KINDS. Cached.

    "small" below a billion parameters, else "adapter", else "dense" or "experts"; never "sft".
    """
    if parameters(model).total < SMALL:
        return "small"
    if model.adapter is not None:
        return "adapter"
    return "dense" if model.experts is None else "experts"


def own_blocks(model: ModelDescriptor) -> bool:
    """Return whether some layers have a mixer block, such as a state-space one, in place of attention or beside it."""
    return any(mixer.block != NO_MIXER for mixer in model.mixers)


@cache
def _data() -> Any:
    return json.loads((files("symconfig.solve") / "data" / "accuracy.json").read_text(encoding="utf-8"))


@cache
def recorded(quantity: Quantity) -> tuple[tuple[Ratios, ...], Spread]:
    """Return (ratios, spread) of one quantity from the data file. Cached."""
    ratios = (Ratios(**{**each, "measured": tuple(each["measured"])}) for each in _data()["ratios"])
    return tuple(each for each in ratios if each.quantity == quantity), Spread(**_data()["spread"][quantity])


def expected(seen: Sequence[Ratios], run: float, source: float, gpu: str, kind_of_model: str) -> tuple[float, float]:
    """Return (mean, standard deviation) of the log ratio of one run of an unseen source, given observed ratios.

    seen: ratios to learn from, by their medians; run, source: standard deviations as in `Spread`; the source's variance
    is divided by SHARES over kind, GPU and source. gpu: an architecture. The deviation includes that of the run.
    """
    known = [
        Relative((each.kind, each.gpu, each.source), each.middle, OF_MEDIAN * run**2 / len(each.measured))
        for each in seen
    ]
    mean, variance = posterior((kind_of_model, gpu, ""), known, [share * source**2 for share in SHARES])
    return mean, math.sqrt(variance + run**2)


@cache
def _log_ratio(quantity: Quantity, gpu: str, kind_of_model: str, own_blocks: bool) -> NormalDist:
    """Return the normal distribution of the log of measured over predicted for one run of an unseen source. Cached.

    Its deviation is scaled by the recorded reach of the kind of model, so that the 90 % interval covers 90 % of such
    runs. own_blocks: add UNMEASURED_BLOCKS to it in quadrature, for the time only.
    """
    seen, spread = recorded(quantity)
    mean, deviation = expected(seen, spread.run, spread.source, gpu, kind_of_model)
    unmeasured = (UNMEASURED_BLOCKS * own_blocks, ANNOUNCED * (gpu == NO_GPU)) if quantity == "time" else ()
    more = math.hypot(*unmeasured)
    return NormalDist(mean, math.hypot(deviation * spread.reach[kind_of_model] / _DEVIATIONS, more))


def _gpu(cluster: ClusterDescriptor) -> str:
    """Return the architecture by which runs are looked up; NO_GPU if the cluster's GPU is announced only."""
    return NO_GPU if cluster.announced else cluster.gpu.architecture


def chance(quantity: Quantity, cluster: ClusterDescriptor, model: ModelDescriptor, factor: float) -> float:
    """Return the probability that a measured value is at most `factor` times its prediction."""
    return _log_ratio(quantity, _gpu(cluster), kind(model), own_blocks(model)).cdf(math.log(factor))


def quantile(quantity: Quantity, cluster: ClusterDescriptor, model: ModelDescriptor, probability: float) -> float:
    """Return the ratio of measured to predicted that is not exceeded with this probability."""
    return math.exp(_log_ratio(quantity, _gpu(cluster), kind(model), own_blocks(model)).inv_cdf(probability))


@cache
def _factors(quantity: Quantity, gpu: str, kind_of_model: str, own_blocks: bool, more: float) -> Interval:
    """Return the 90 % interval of measured over predicted, widened on one side to include 1 if it does not. Cached.

    gpu: an architecture. more: standard deviation of the log ratio to add in quadrature. own_blocks: also named in the
    basis, for the time only.
    """
    deviates = _log_ratio(quantity, gpu, kind_of_model, own_blocks)
    reach = _DEVIATIONS * math.hypot(deviates.stdev, more)
    low, high = (math.exp(deviates.mean + side * reach) for side in (-1.0, 1.0))
    # The interval always contains the prediction: a bias of the runs widens it on one side only.
    basis = _basis(recorded(quantity)[0], gpu, kind_of_model)
    if own_blocks and quantity == "time":
        basis += "; of none with such blocks in attention's place"
    return Interval(min(low, 1.0), max(high, 1.0), basis)


def _basis(seen: Sequence[Ratios], gpu: str, kind_of_model: str) -> str:
    """Return on which runs an interval is based, as text: number of runs, models, GPUs and number of sources.

    The runs are those of the same kind on the same GPU, else of the same kind, else all.
    """
    alike = [each for each in seen if each.kind == kind_of_model]
    same = [each for each in alike if each.gpu == gpu]
    models = KINDS[kind_of_model]
    where = f"{models} on {gpu} GPUs" if same else f"{models} on other GPUs" if alike else "other models"
    runs = same or alike or seen
    n, sources = sum(len(each.measured) for each in runs), len({each.source for each in runs})
    return f"runs by others: {count(n)} of {where}, from {several(sources, 'source')}"


def interval(quantity: Quantity, cluster: ClusterDescriptor, model: ModelDescriptor, more: float = 0.0) -> Interval:
    """Return the 90 % interval of measured over predicted for this kind of model and GPU architecture.

    With few runs of the same kind it relies on those of others. more: standard deviation of the log ratio to add.
    """
    return _factors(quantity, _gpu(cluster), kind(model), own_blocks(model), more)


def spread_over(ratios: Array, quantity: Quantity, cluster: ClusterDescriptor, model: ModelDescriptor) -> Interval:
    """Return the 90 % interval if the prediction itself is uncertain; it always includes 1.

    ratios: equally probable outcomes over the prediction, [n], each multiplied with the errors of `interval`. If all
    are equal, even other than 1, the plain interval is returned.
    """
    plain = interval(quantity, cluster, model)
    if np.ptp(ratios) == 0.0:
        return plain
    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    errors = [quantile(quantity, cluster, model, share) for share in shares]
    low, high = np.quantile(np.outer(errors, ratios), NINE_IN_TEN)
    return replace(plain, low=min(float(low), 1.0), high=max(float(high), 1.0))
