"""How far a prediction may be off: what measured runs of the same kind did.

data/accuracy.json is written by `make accuracy` from published runs. Its ratios are measured over predicted; where a
model could be left out of the fit of its GPU's constants, predicted by the fit that did not see it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.count import parameters

Quantity = Literal["time", "memory"]
KINDS = {
    "dense": "dense models",
    "experts": "mixtures of experts",
    "adapter": "low-rank adapters",
    "small": "models below a billion parameters",
}
SMALL = 1e9  # parameters, below which what frameworks hold beside the model decides
TAIL = 0.05  # of the runs on either side
LEAST = round(1 / TAIL) - 1  # fewer runs have no such tail
TWO_SIDED_90 = 1.645


@dataclass(frozen=True, slots=True)
class Ratios:
    """measured: sorted, measured over predicted, of runs of one framework, GPU architecture and kind of model."""

    quantity: Quantity
    framework: str
    gpu: str
    kind: str
    measured: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Interval:
    """Factors of a prediction between which nine of ten comparable runs lie, and which runs these were."""

    low: float
    high: float
    basis: str


@cache
def kind(model: ModelDescriptor) -> str:
    """The kind of model, for comparison."""
    if parameters(model).total < SMALL:
        return "small"
    if model.adapter is not None:
        return "adapter"
    return "dense" if model.experts is None else "experts"


@cache
def recorded() -> tuple[Ratios, ...]:
    """What comes with symconfig."""
    data = json.loads((files("symconfig.solve") / "data" / "accuracy.json").read_text(encoding="utf-8"))
    return tuple(Ratios(**{**found, "measured": tuple(found["measured"])}) for found in data["ratios"])


def interval(quantity: Quantity, framework: str, cluster: ClusterDescriptor, model: ModelDescriptor) -> Interval:
    """From the most alike runs of which there are enough: same framework, GPU and kind; then less alike ones.

    Where no run on this GPU's architecture counts, the uncertainty of its own constants widens the interval.
    """
    gpu, mine = cluster.gpu.architecture, kind(model)
    known = [r for r in recorded() if r.quantity == quantity]
    steps = (
        ([r for r in known if (r.framework, r.gpu, r.kind) == (framework, gpu, mine)], f"{KINDS[mine]} on {gpu} GPUs"),
        ([r for r in known if (r.gpu, r.kind) == (gpu, mine)], f"{KINDS[mine]} on {gpu} GPUs, with any framework"),
        ([r for r in known if r.kind == mine], f"{KINDS[mine]} on any GPU"),
        (known, "any model on any GPU"),
    )
    runs, basis = next((found for found in steps if sum(len(r.measured) for r in found[0]) >= LEAST), steps[-1])
    values = sorted(value for r in runs for value in r.measured)
    cut = max(1, math.floor(TAIL * (len(values) + 1)))
    low, high = values[cut - 1], values[-cut]
    if quantity == "time" and not any(r.gpu == gpu for r in runs):
        wider = TWO_SIDED_90 * cluster.kernels.gemm_efficiency.uncertainty
        low, high = math.exp(math.log(low) - wider), math.exp(math.log(high) + wider)
    # The prediction itself always lies inside: a bias that the runs show widens the interval on one side only.
    return Interval(min(low, 1.0), max(high, 1.0), f"{len(values)} runs of {basis}")
