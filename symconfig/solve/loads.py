"""How unevenly routers load ranks: how long steps wait for the busiest, and with how much memory they must do.

A router that has learned nothing sends every occurrence of a token to the same experts: over those of a layer loads
then spread as the root of how probable it is that two tokens of a batch are alike, times the experts for each one
chosen but one. One that was trained sends tokens of one kind to the same experts, where it was balanced over all kinds:
the same law with more tokens alike. Layers differ in which of their experts are popular, so that a rank's excess
averages out over the layers of its stage, and a single layer's does not. In every layer all ranks wait for the one that
has most: what they wait does not average out, it is the excess of the busiest rank in the mean of the layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from symconfig.cost.lattice import LOAD, OF_LAYER, OF_STAGE, OF_STEP, Array
from symconfig.cost.machine import largest_deviate
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Experts
from symconfig.descriptor.task import Task


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
    """Return lattice numbers for expert load imbalance in memory, [n] each; empty without layers with experts.

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

    ep: [n]. shares: quantile of runs, [n] or one number. Loads are those of trained routers, whatever the task, count
    as independent between ranks, and are capped.
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
    """Return the lattice numbers for experts with buffers of a fixed size, of those for what comes; 0: unchanged.

    capacity: tokens that a rank's experts have buffers for, over the mean. Memory is that of the buffers, in all layers
    or, with a paged stash, in the one at work, while others keep PAGES times the mean. Time is that of what comes.
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
