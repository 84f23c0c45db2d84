"""By how much a plan's step changes as far as each constant of its GPU, or of a link, is uncertain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from symconfig.cost.machine import stated
from symconfig.descriptor.cluster import ClusterDescriptor, Host, Kernels, Level
from symconfig.solve.choice.draws import priced_s
from symconfig.solve.prospect import Prospect

_SHOWN = 5e-4  # of the step: what moves it by less is left out


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """A constant, its value, and one standard deviation of its logarithm. low, high: the change of the step, as a share
    of it, where the constant is lower and higher by one such deviation."""

    name: str
    says: str
    value: float
    uncertainty: float
    low: float
    high: float


def sensitivities(prospect: Prospect, cluster: ClusterDescriptor) -> tuple[Sensitivity, ...]:
    """Return what moves the step, the most first. prospect: simulated."""
    known = {name: quantity for name, quantity in stated(cluster).items() if quantity.uncertainty > 0}
    count = 2 * len(known) + 1
    constants = {name: np.full(count, quantity.value) for name, quantity in known.items()}
    for place, (name, quantity) in enumerate(known.items()):
        constants[name][2 * place : 2 * place + 2] *= np.exp(np.array([-1, 1]) * quantity.uncertainty)
    steps = priced_s(prospect, cluster, constants)
    changes = steps[:-1] / steps[-1] - 1
    made = [
        Sensitivity(
            name=name,
            says=_says(name),
            value=quantity.value,
            uncertainty=quantity.uncertainty,
            low=float(changes[2 * place]),
            high=float(changes[2 * place + 1]),
        )
        for place, (name, quantity) in enumerate(known.items())
    ]
    moving = [one for one in made if max(abs(one.low), abs(one.high)) >= _SHOWN]
    return tuple(sorted(moving, key=lambda one: -max(abs(one.low), abs(one.high))))


def _says(name: str) -> str:
    """Return what a constant is, as its descriptor has it."""
    where, _, field = name.rpartition(".")
    fields = (Kernels if not where else Host if where == "host" else Level).model_fields
    return (fields[field].description or name).split(". ")[0]
