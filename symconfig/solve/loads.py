"""How unevenly a router loads ranks while it is untrained, when memory must be enough, too.

A router that has learned nothing sends every occurrence of a token to the same experts: over those of a layer loads
then spread as the root of how probable it is that two tokens of a batch are alike, times the experts for each one
chosen but one. Layers differ in which of their experts are popular, so that a rank's excess averages out over the
layers of its stage, and a single layer's does not.
"""

from __future__ import annotations

import numpy as np

from symconfig.cost.lattice import Array
from symconfig.cost.machine import largest_deviate
from symconfig.cost.uneven import OF_LAYER, OF_STAGE
from symconfig.descriptor.model import ModelDescriptor

# Probability that two tokens of a batch are alike to the router, every order of magnitude as probable. Words as
# frequent as their rank has them (Zipf-Mandelbrot, 100,000 words) have 0.003; 0.009 is what loss-balanced routers still
# show after training, MaxVio of 0.72 over 64 experts of which 6 are chosen (arXiv 2408.15664, table 2). Recorded peaks
# of small models' first iterations show no more: most are as of 1.0 to 1.3 times the mean in all layers, none as of
# 1.5, and one rank that has all experts as of 1.3 (tests/measured/test_loads.py).
ALIKE = (0.0025, 0.01)
# Share of runs whose loads are no more uneven than those with which a search lets plans fit. Where a prediction's error
# has a risk of 5 % left with these, of all draws of both 4.5 to 4.7 % run out (DeepSeek-V3 on 64 ranks, Qwen3, others).
PLANNED = 0.65


def alike(shares: Array | float) -> Array:
    """Return the probability that two tokens are alike which so large shares of runs stay below."""
    low, high = ALIKE
    result: Array = np.asarray(low * (high / low) ** shares)
    return result


def uneven(model: ModelDescriptor, ep: Array, shares: Array | float) -> dict[str, Array]:
    """Return the numbers of a lattice that say how uneven experts' loads are, as of `cost.uneven`; none for other
    models. ep [n]; shares: of runs that are no more uneven, [n] or of all points."""
    experts, layers = model.experts, sum(model.moe_layers)
    if experts is None or not layers:
        return {}
    chosen = experts.num_experts / experts.computing_per_tok
    # A rank's experts add up their loads, and those of all ranks are what there is.
    spread = np.sqrt(alike(shares) * max(chosen - 1, 0.0) * ep / experts.num_experts * (1 - 1 / ep))
    return {OF_LAYER: 1 + spread * _largest(ep * layers), OF_STAGE: spread * _largest(ep) / np.sqrt(layers)}


def _largest(count: Array) -> Array:
    """Return the expected maximum of so many normal deviates, [n]."""
    different, which = np.unique(count, return_inverse=True)
    result: Array = np.array([largest_deviate(one) for one in different.tolist()])[which]
    return result
