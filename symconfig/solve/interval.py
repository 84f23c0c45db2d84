"""What a prediction cannot know: how far measured runs are from it, and how unevenly routers load the experts' ranks.

Errors: data/accuracy.json is written by `make accuracy` from published runs. Its ratios are measured over predicted,
each predicted by constants that were fitted without the run's source, and it says how runs and sources spread: a tree
of normal distributions (kind of model, GPU, source), each a deviation of its own. From it follow intervals, and the
memory that a plan may be predicted to take at a given risk.

Loads: a router that has learned nothing sends every occurrence of a token to the same experts. The loads of a layer's
experts then spread as the root of (probability that two tokens of a batch are alike) x (experts per chosen one - 1). A
trained router, balanced over all kinds of text, sends tokens of one kind to the same experts: the same law with more
tokens alike. Layers differ in which experts are popular, so the excess of a rank averages out over the layers of its
stage. Time does not average out: in every layer all ranks wait for the busiest one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist, median
from typing import Literal

import numpy as np

from symconfig.cost.lattice import LOAD, OF_LAYER, OF_STAGE, OF_STEP, Array
from symconfig.cost.machine import largest_deviate
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import NO_MIXER, Experts
from symconfig.descriptor.task import Task
from symconfig.format import several
from symconfig.graph.model import parameters
from symconfig.resources import json_data

_ACCURACY = Path(__file__).with_name("data") / "accuracy.json"
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
MEMORY_RISK = "memory_risk"  # a job's limit, and the name of a plan's note that no plan meets it
NO_LIMIT = 1.0  # memory risk that means no limit


@dataclass(frozen=True, slots=True)
class Ratios:
    """Measured over predicted, sorted, of one source's runs of one kind of model on one GPU architecture."""

    quantity: Quantity
    gpu: str
    kind: str
    source: str
    measured: tuple[float, ...]


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


@cache
def recorded(quantity: Quantity) -> tuple[tuple[Ratios, ...], Spread]:
    """Return (ratios, spread) of one quantity from the data file. Cached."""
    data = json_data(_ACCURACY)
    ratios = (Ratios(**{**each, "measured": tuple(each["measured"])}) for each in data["ratios"])
    return tuple(each for each in ratios if each.quantity == quantity), Spread(**data["spread"][quantity])


@dataclass(frozen=True, slots=True)
class Relative:
    """An observed member of a tree of normal distributions.

    path: names of the levels above it, from the root down, and its own. value: its deviation from the root's mean;
    variance: of the observation's error.
    """

    path: tuple[object, ...]
    value: float
    variance: float


def posterior(path: tuple[object, ...], seen: Sequence[Relative], variances: Sequence[float]) -> tuple[float, float]:
    """Return (mean, variance) of a member given observed relatives, as deviations from the root's mean.

    The best linear estimate (Gaussian process): two members covary by the variances of the levels before their paths
    first differ. variances: of each level, from the root down; each path has as many names. Without relatives the mean
    is 0.
    """

    def covariance(one: tuple[object, ...], other: tuple[object, ...]) -> float:
        """Return the sum of the variances of the levels before two paths first differ."""
        result = 0.0
        for mine, its, variance in zip(one, other, variances, strict=True):
            if mine != its:
                break
            result += variance
        return result

    among = np.array([[covariance(a.path, b.path) for b in seen] for a in seen]).reshape(len(seen), len(seen))
    among += np.diag([each.variance for each in seen])
    mine = np.array([covariance(path, each.path) for each in seen])
    weights = np.linalg.solve(among, mine)
    mean = float(weights @ np.array([each.value for each in seen]))
    return mean, float(covariance(path, path) - weights @ mine)


def expected(seen: Sequence[Ratios], run: float, source: float, gpu: str, kind_of_model: str) -> tuple[float, float]:
    """Return (mean, standard deviation) of the log ratio of one run of an unseen source, given observed ratios.

    seen: ratios to learn from, by their medians; run, source: standard deviations as in `Spread`; the source's variance
    is divided by SHARES over kind, GPU and source. gpu: an architecture. The deviation includes that of the run.
    """
    known = [
        Relative(
            (each.kind, each.gpu, each.source), math.log(median(each.measured)), OF_MEDIAN * run**2 / len(each.measured)
        )
        for each in seen
    ]
    mean, variance = posterior((kind_of_model, gpu, ""), known, [share * source**2 for share in SHARES])
    return mean, math.sqrt(variance + run**2)


@cache
def errors(quantity: Quantity, cluster: ClusterDescriptor, model: ModelDescriptor) -> NormalDist:
    """Return the distribution of log(measured / predicted) for one run of an unseen source, by kind of model and GPU.

    Its deviation is scaled by the recorded reach of the kind of model, so that the 90 % interval covers 90 % of such
    runs. For the time, UNMEASURED_BLOCKS is added in quadrature if layers have mixers, and ANNOUNCED if the GPU is
    announced only. Cached.
    """
    gpu = _architecture(cluster)
    mean, deviation = _expected(quantity, gpu, kind(model))
    unmeasured = (UNMEASURED_BLOCKS * _has_mixers(model), ANNOUNCED * (gpu == NO_GPU)) if quantity == "time" else ()
    return NormalDist(mean, math.hypot(deviation, *unmeasured))


@cache
def _expected(quantity: Quantity, gpu: str, kind_of_model: str) -> tuple[float, float]:
    """Return (mean, standard deviation scaled by reach) as `errors` has them, before what is unmeasured. Cached."""
    seen, spread = recorded(quantity)
    mean, deviation = expected(seen, spread.run, spread.source, gpu, kind_of_model)
    return mean, deviation * spread.reach[kind_of_model] / _DEVIATIONS


def _architecture(cluster: ClusterDescriptor) -> str:
    """Return the architecture by which runs are looked up; NO_GPU if the cluster's GPU is announced only."""
    return NO_GPU if cluster.announced else cluster.gpu.architecture


def _has_mixers(model: ModelDescriptor) -> bool:
    """Return whether some layers have a mixer block, such as a state-space one, in place of attention or beside it."""
    return any(mixer.block != NO_MIXER for mixer in model.mixers)


def interval(quantity: Quantity, cluster: ClusterDescriptor, model: ModelDescriptor) -> Interval:
    """Return the 90 % interval of measured over predicted for this kind of model and GPU architecture.

    It has the 5 % and 95 % quantiles of `errors`, widened on one side to include 1 if they do not. Its basis says in
    words on which runs it relies: those of the same kind on the same GPU, else of the same kind, else all.
    """
    deviates, (seen, _), gpu = errors(quantity, cluster, model), recorded(quantity), _architecture(cluster)
    low, high = (math.exp(deviates.mean + side * _DEVIATIONS * deviates.stdev) for side in (-1.0, 1.0))
    own = kind(model)
    alike = [each for each in seen if each.kind == own]
    same = [each for each in alike if each.gpu == gpu]
    models, runs = KINDS[own], same or alike or seen
    where = f"{models} on {gpu} GPUs" if same else f"{models} on other GPUs" if alike else "other models"
    measured, sources = sum(len(each.measured) for each in runs), len({each.source for each in runs})
    basis = f"{several(measured, 'held-out run')} of {where}, from {several(sources, 'source')}"
    if quantity == "time" and _has_mixers(model):
        basis += "; of none with such blocks in attention's place"
    return Interval(min(low, 1.0), max(high, 1.0), basis)


def spread_over(ratios: Array, quantity: Quantity, cluster: ClusterDescriptor, model: ModelDescriptor) -> Interval:
    """Return the 90 % interval of measured over predicted if the prediction itself is uncertain; it always includes 1.

    ratios: equally probable outcomes over the prediction, [n], each multiplied with the errors of `interval`. If all
    are equal, even other than 1, that `interval` is returned.
    """
    plain, deviates = interval(quantity, cluster, model), errors(quantity, cluster, model)
    if np.ptp(ratios) == 0.0:
        return plain
    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    low, high = np.quantile(np.outer([math.exp(deviates.inv_cdf(share)) for share in shares], ratios), NINE_IN_TEN)
    return replace(plain, low=min(float(low), 1.0), high=max(float(high), 1.0))


def surprise(model: ModelDescriptor, cluster: ClusterDescriptor, risk: float) -> float | None:
    """Return the ratio of measured to predicted peak exceeded with probability `risk`; None if risk is 1 or more."""
    return None if risk >= NO_LIMIT else math.exp(errors("memory", cluster, model).inv_cdf(1.0 - risk))


@dataclass(frozen=True, slots=True)
class Alike:
    """Range of the probability that two tokens of a batch are alike to routers, log-uniform from `least` to `most`."""

    least: float
    most: float

    def below(self, shares: Array | float) -> Array:
        """Return the probability that two tokens are alike which this share of runs stays below; shares: 0 to 1."""
        result: Array = np.asarray(self.least * (self.most / self.least) ** shares)
        return result


# Words as frequent as their rank has them (Zipf-Mandelbrot, 100,000 words) are alike with 0.003; 0.009 is what
# loss-balanced routers still show after training, MaxVio of 0.72 over 64 experts of which 6 are chosen (arXiv
# 2408.15664, table 2). Recorded peaks of small models' first iterations show no more: most are as of 1.0 to 1.3 times
# the mean in all layers, none as of 1.5, and one rank that has all experts as of 1.3 (tests/measured/test_loads.py).
UNTRAINED = Alike(least=0.0025, most=0.01)
# On real data: at least what a balancing loss leaves over all kinds of text, 0.009. At most 0.15: of LFM2.5-8B-A1B,
# which chooses 4 of 32 experts, and Qwen3.6-35B-A3B, 8 of 256, loads over prompts had Gini coefficients of 0.44 and
# 0.65 (github.com/oRKLLM/ork-driver/wiki, Exp 2026 06 26); lognormal loads with these have a spread of 0.99 and 2.2
# of the mean, as of 0.14 and 0.15. What was measured of steps lies between: ranks with 1.44 and 1.57 times the mean
# on 16 and 8 ranks (Megatron-Bridge's verification cards, Qwen3-30B, as of 0.03 and 0.17; these steps took 1.23 times
# as long as those forced to balance), 1.3 to 4 where experts are on many (arXiv 2606.04101), 18.6 % of a layer's time
# lost on 8, as of 1.23 (arXiv 2604.19654).
TRAINED = Alike(least=0.009, most=0.15)
# Where a prediction's error has a risk of 5 % left with the planned share, of all draws of both 4.5 to 4.7 % run out
# (DeepSeek-V3 on 64 ranks, Qwen3, others), and of tuned models 3.6 to 5.5 % where uneven loads take up to a fifth of
# the memory.
PLANNED = {"pretrain": 0.65}  # quantile of runs whose load imbalance plans must fit, by task
PLANNED_TUNING = 0.75  # of all other tasks
EVERY = (np.arange(64) + 0.5) / 64  # quantiles of runs, equally probable, that represent all
# Of the mean, what a paged stash has pages for: --moe-paged-stash-buffer-size-factor-cuda, its default.
PAGES = 1.1
MIDDLE = 0.5  # quantile of runs whose load imbalance a step is priced with


def uneven(model: ModelDescriptor, ep: Array, task: Task, shares: Array | float | None = None) -> dict[str, Array]:
    """Return the numbers of expert load imbalance in memory, by symbol, [n] each; empty without layers with experts.

    OF_LAYER: largest load of any layer and rank over the mean; OF_STAGE: excess of the fullest rank over the mean of
    all layers; both are capped. Pre-training counts as UNTRAINED, other tasks as TRAINED. ep: [n]. shares: quantile of
    runs, [n] or one number; None: the quantile that plans must fit.
    """
    experts, layers = model.experts, sum(model.moe_layers)
    if experts is None or not layers:
        return {}
    memory = UNTRAINED if task == "pretrain" else TRAINED
    alike = memory.below(PLANNED.get(task, PLANNED_TUNING) if shares is None else shares)
    spread, most = _spread(experts, ep, alike) * np.sqrt(1 - 1 / ep), _most(experts, ep)  # all ranks' are what there is
    layer = np.minimum(1 + spread * _largest(ep * layers), most)
    return {OF_LAYER: layer, OF_STAGE: np.minimum(spread * _largest(ep) / np.sqrt(layers), most - 1)}


def waited(model: ModelDescriptor, ep: Array, shares: Array | float = MIDDLE) -> dict[str, Array]:
    """Return {OF_STEP: load of the rank that a layer waits for, over the mean}, [n]; empty without layers with experts.

    The rank is the busiest of the layer. ep: [n]. shares: quantile of runs, [n] or one number. Loads are those of
    trained routers, whatever the task, count as independent between ranks, and are capped.
    """
    experts = model.experts
    if experts is None or not any(model.moe_layers):
        return {}
    spread = _spread(experts, ep, TRAINED.below(shares))
    return {OF_STEP: np.minimum(1 + spread * _largest(ep), _most(experts, ep))}


def stated(model: ModelDescriptor, ep: Array, load: float) -> dict[str, Array | float]:
    """Return {LOAD: the load imbalance that the job states}, capped at the load of a rank with all tokens, [n].

    ep: [n]. A load of 1, or any of a dense model, is returned as the number itself.
    """
    return {LOAD: load if model.experts is None or load == 1.0 else np.minimum(load, _most(model.experts, ep))}


def fixed(numbers: Mapping[str, Array | float], capacity: float, stash: bool) -> dict[str, Array | float]:
    """Return the lattice numbers of loads for experts with buffers of fixed size, from `numbers` for buffers that grow.

    capacity: tokens that a rank's buffers hold, over the mean; 0: `numbers` are only copied. LOAD becomes what all
    layers keep: the capacity, or with a paged stash PAGES. OF_LAYER is capacity over LOAD, for the layer at work,
    OF_STAGE 0. OF_STEP is scaled so that the load that the time depends on stays as in `numbers`.
    """
    if capacity == 0:
        return dict(numbers)
    kept = PAGES if stash else capacity
    waits = numbers[LOAD] * numbers.get(OF_STEP, 1.0) / kept
    return {**numbers, LOAD: kept, OF_STEP: waits, OF_LAYER: capacity / kept, OF_STAGE: 0.0}


def _spread(experts: Experts, ep: Array, alike: Array) -> Array:
    """Return the standard deviation of a rank's load over the mean, if ranks were independent, [n]."""
    others = max(experts.num_experts / experts.computing_per_tok - 1, 0.0)
    result: Array = np.sqrt(alike * others * ep / experts.num_experts)
    return result


def _most(experts: Experts, ep: Array) -> Array:
    """Return the largest possible load of a rank over the mean, [n]: the lesser of ep and experts / experts chosen."""
    result: Array = np.minimum(ep, experts.num_experts / experts.computing_per_tok)
    return result


def _largest(count: Array) -> Array:
    """Return the expected maximum of `count` standard normal deviates, [n]."""
    different, which = np.unique(count, return_inverse=True)
    result: Array = np.array([largest_deviate(one) for one in different.tolist()])[which]
    return result
