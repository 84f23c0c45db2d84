"""Draws of what is uncertain, the same for all plans, and each plan's step under every one of them.

Every uncertain factor is a normal deviate by its name. It takes as many equally probable values as there are draws, in
an order that its name decides: so plans that share a factor share its draws, and every machine draws the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from random import Random
from statistics import NormalDist
from types import MappingProxyType

import numpy as np

from symconfig.cost.lattice import Array, Lattice
from symconfig.cost.machine import machine
from symconfig.cost.step import total
from symconfig.cost.table import Table
from symconfig.descriptor.cluster import ClusterDescriptor, Kernels
from symconfig.solve.choice.family import family
from symconfig.solve.costed import costed, detailed, same_blocks, sizes, table_of
from symconfig.solve.interval import recorded
from symconfig.solve.loads import Law, uneven, waited
from symconfig.solve.prospect import Prospect

DRAWS = 64
MOST_TABLES = 64  # of one cluster that are kept
# Shares of the variance of a source's runs around what the source has in common (`Spread.run`) that a plan has from its
# micro-batch, from each degree, and by itself. Within measured sweeps, half the mean square difference of two runs' log
# ratios is 0.2 to 0.5 of that variance where plans are of one family, 0.5 to 0.8 where one degree differs, and up to 2
# where two do (medians and means over the nine sweeps of published runs; plans of other degrees also differ in
# micro-batch).
ITSELF, MICRO, DEGREE = 0.25, 0.15, 0.3

Tables = dict[tuple[object, ...], Table]


@cache
def deviates(name: str) -> Array:
    """Return the draws of one factor: [DRAWS], of mean 0 and variance 1."""
    normal = NormalDist()
    values = [normal.inv_cdf((place + 0.5) / DRAWS) for place in range(DRAWS)]
    Random(name).shuffle(values)
    result = np.array(values)
    result /= result.std()
    result.setflags(write=False)
    return result


@dataclass(frozen=True, slots=True)
class Draws:
    """Draws of a cluster's constants, [DRAWS] each.

    tables: of blocks under every draw; plans of one point share them, whatever their stages and their batch are. A
    process keeps them for its next plan on the cluster, until there are too many.
    """

    constants: Mapping[str, Array]
    tables: Tables = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    @lru_cache(maxsize=2)
    def of(cluster: ClusterDescriptor) -> Draws:
        stated = {name: getattr(cluster.kernels, name) for name in Kernels.model_fields}
        drawn = {
            name: quantity.value * np.exp(quantity.uncertainty * deviates(name))
            for name, quantity in stated.items()
            if quantity is not None
        }
        return Draws(drawn)


def step_seconds(prospect: Prospect, cluster: ClusterDescriptor, draws: Draws) -> Array:
    """Return the step under every draw, [DRAWS], with the plan's own error. prospect: simulated."""
    steps = priced_s(prospect, cluster, draws.constants, loads(prospect, waited), draws.tables)
    result: Array = steps * np.exp(own_error(prospect))
    return result


def priced_s(
    prospect: Prospect,
    cluster: ClusterDescriptor,
    constants: Mapping[str, Array],
    of_loads: Mapping[str, Array] = MappingProxyType({}),
    tables: Tables | None = None,
) -> Array:
    """Return the step under other constants, of some of `stated`, and other loads of experts, [n] each.

    By the formula, scaled as the simulated step is with the cluster's own. tables: those made before under the same."""
    request, tables = prospect.request, {} if tables is None else tables
    other = replace(prospect, machine=machine(cluster, request.precision, constants, request.gpus))
    count = next(iter(constants.values())).size
    key = (*same_blocks(prospect, sizes(prospect, 1)), request.precision, request.gpus)
    if key not in tables:
        plain = sizes(prospect, count)
        where = Lattice({**plain.numbers, **of_loads}, plain.points)
        if len(tables) >= MOST_TABLES:
            tables.clear()
        tables[key] = table_of(other, where)
    formula = float(np.ravel(costed(prospect).cost.step_s)[0])
    steps = detailed(other, tables[key]).cost.step_s
    result: Array = np.broadcast_to(np.ravel(steps), (count,)) * (prospect.step_s / formula)
    return result


def loads(prospect: Prospect, law: Law) -> dict[str, Array]:
    """Return the numbers of a lattice that a law gives of experts' loads under every draw, [DRAWS]; none where they are
    even, or stated."""
    request, ep = prospect.request, prospect.degrees.ep
    if ep == 1 or request.job.limits.expert_imbalance is not None:
        return {}
    return law(request.model, np.full(DRAWS, float(ep)), request.job.task_of(request.model), shares())


def under_loads(prospect: Prospect) -> tuple[Array, Array] | None:
    """Return the bytes that the fullest stage needs and the step by the formula, with uneven loads of experts under
    every draw, [DRAWS] each; None where they are even, or stated."""
    even = prospect.even
    if not (numbers := loads(even, uneven) | loads(even, waited)):
        return None
    plain = sizes(even, DRAWS)
    cost = detailed(even, table_of(even, Lattice({**plain.numbers, **numbers}, plain.points))).cost
    drawn = (total(cost.memory).max(axis=0)[0, 0], cost.step_s[0, 0])
    needed, steps = (np.broadcast_to(each, DRAWS) for each in drawn)
    return needed, steps


def peaks(prospect: Prospect) -> Array:
    """Return the bytes that the fullest stage needs with uneven loads of experts, under every draw: [DRAWS]."""
    drawn = under_loads(prospect)
    return np.full(DRAWS, max(costed(prospect.even).peaks)) if drawn is None else drawn[0]


def shares() -> Array:
    """Return the share of runs whose experts' loads are no more uneven than in each draw: [DRAWS]."""
    return np.array([NormalDist().cdf(value) for value in deviates("loads of experts")])


def own_error(prospect: Prospect) -> Array:
    """Return the log error of a plan that it does not share with all others: [DRAWS]."""
    _, spread = recorded("time")
    parts = (share**0.5 * deviates(name) for name, share in _factors(prospect))
    result: Array = spread.run * np.sum(list(parts), axis=0)
    return result


def _factors(prospect: Prospect) -> Iterator[tuple[str, float]]:
    mine = family(prospect)
    for name in ("tp", "cp", "pp", "ep", "etp", "zero", "precision"):
        yield f"{name} {getattr(mine, name)}", DEGREE
    yield f"{mine} micro-batch {prospect.micro}", MICRO
    yield f"{mine} micro-batch {prospect.micro} vpp {prospect.split.vpp} {sorted(prospect.choice.modules)}", ITSELF
