"""How unevenly routers load ranks, when memory must be enough, too.

A router that has learned nothing sends every occurrence of a token to the same experts: over those of a layer loads
then spread as the root of how probable it is that two tokens of a batch are alike, times the experts for each one
chosen but one. One that was trained sends tokens of one kind to the same experts, where it was balanced over all kinds:
the same law with more tokens alike. Layers differ in which of their experts are popular, so that a rank's excess
averages out over the layers of its stage, and a single layer's does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from symconfig.cost.lattice import Array
from symconfig.cost.machine import largest_deviate
from symconfig.cost.uneven import OF_LAYER, OF_STAGE
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.task import Task


@dataclass(frozen=True, slots=True)
class Routers:
    """Routers as a run has them. least, most: the probability that two tokens of a batch are alike to them, every order
    of magnitude as probable. planned: the share of runs whose loads are no more uneven than those with which a search
    lets plans fit."""

    least: float
    most: float
    planned: float

    def alike(self, shares: Array | float) -> Array:
        """Return the probability that two tokens are alike which so large shares of runs stay below."""
        result: Array = np.asarray(self.least * (self.most / self.least) ** shares)
        return result


# Words as frequent as their rank has them (Zipf-Mandelbrot, 100,000 words) are alike with 0.003; 0.009 is what
# loss-balanced routers still show after training, MaxVio of 0.72 over 64 experts of which 6 are chosen (arXiv
# 2408.15664, table 2). Recorded peaks of small models' first iterations show no more: most are as of 1.0 to 1.3 times
# the mean in all layers, none as of 1.5, and one rank that has all experts as of 1.3 (tests/measured/test_loads.py).
# Where a prediction's error has a risk of 5 % left with the planned share, of all draws of both 4.5 to 4.7 % run out
# (DeepSeek-V3 on 64 ranks, Qwen3, others).
UNTRAINED = Routers(least=0.0025, most=0.01, planned=0.65)
# Weights of a checkpoint on data of one kind, for which programs of reinforcement learning have no balancing loss
# (verl's models/mcore/config_converter.py, NeMo-RL's grpo_math_1B.yaml, slime's scripts/models): at least what the loss
# left over all kinds, 0.009. At most 0.15: of LFM2.5-8B-A1B, which chooses 4 of 32 experts, and Qwen3.6-35B-A3B, 8 of
# 256, loads over prompts had Gini coefficients of 0.44 and 0.65 (github.com/oRKLLM/ork-driver/wiki, Exp 2026 06 26).
# Lognormal loads with these have a spread of 0.99 and 2.2 of the mean, as of 0.14 and 0.15. With the planned share, 3.6
# to 5.5 % of draws run out where uneven loads take up to a fifth of the memory.
TRAINED = Routers(least=0.009, most=0.15, planned=0.75)


def routers(task: Task) -> Routers:
    """Return the routers that a task begins with: all but pre-training begin with a checkpoint's."""
    return UNTRAINED if task == "pretrain" else TRAINED


def uneven(model: ModelDescriptor, ep: Array, task: Task, shares: Array | float | None = None) -> dict[str, Array]:
    """Return the numbers of a lattice that say how uneven experts' loads are, as of `cost.uneven`; none for other
    models. ep [n]; shares: of runs that are no more uneven, [n] or of all points; None: those that plans must fit."""
    experts, layers, of_task = model.experts, sum(model.moe_layers), routers(task)
    if experts is None or not layers:
        return {}
    chosen = experts.num_experts / experts.computing_per_tok
    alike = of_task.alike(of_task.planned if shares is None else shares)
    # A rank's experts add up their loads, and those of all ranks are what there is.
    spread = np.sqrt(alike * max(chosen - 1, 0.0) * ep / experts.num_experts * (1 - 1 / ep))
    most = np.minimum(ep, chosen)  # every token's slot, or one slot of every token for each expert
    layer = np.minimum(1 + spread * _largest(ep * layers), most)
    return {OF_LAYER: layer, OF_STAGE: np.minimum(spread * _largest(ep) / np.sqrt(layers), most - 1)}


def _largest(count: Array) -> Array:
    """Return the expected maximum of so many normal deviates, [n]."""
    different, which = np.unique(count, return_inverse=True)
    result: Array = np.array([largest_deviate(one) for one in different.tolist()])[which]
    return result
