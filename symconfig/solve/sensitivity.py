"""By how much a plan's step changes as far as each constant of its GPU, or of a link, is uncertain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from symconfig.cost.lattice import Array
from symconfig.cost.machine import machine, stated
from symconfig.descriptor.cluster import ClusterDescriptor, Host, Kernels, Level
from symconfig.solve.costed import costed, detailed, sizes, table_of
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


def priced_s(prospect: Prospect, cluster: ClusterDescriptor, constants: Mapping[str, Array]) -> Array:
    """Return the step under other constants, of some of `stated`, [n] each: by the formula, scaled as the simulated
    step is with the cluster's own."""
    request, count = prospect.request, next(iter(constants.values())).size
    other = replace(prospect, machine=machine(cluster, request.precision, constants, request.gpus))
    steps = detailed(other, table_of(other, sizes(prospect, count))).cost.step_s
    formula = float(np.ravel(costed(prospect).cost.step_s)[0])
    result: Array = np.broadcast_to(np.ravel(steps), (count,)) * (prospect.step_s / formula)
    return result


def _says(name: str) -> str:
    """Return what a constant is, as its descriptor has it."""
    where, _, field = name.rpartition(".")
    fields = (Kernels if not where else Host if where == "host" else Level).model_fields
    return (fields[field].description or name).split(". ")[0]
