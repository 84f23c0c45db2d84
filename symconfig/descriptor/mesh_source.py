"""Where a mesh comes from: a cluster and a number of its GPUs, or a YAML file that lists levels.

    schema: symconfig.mesh/1
    levels:  # innermost first; the product of the sizes is the number of GPUs
      - name: nvlink
        size: 8                        # domains of the level inside (here GPUs) that it joins
        bandwidth_bytes_per_s: 450e9   # per GPU, one direction, as the wire has it
        latency_s: 3.4e-6              # of one message
        mesh: false                    # true: links between all pairs and no switch

A file's levels stand for the cluster's; what the device itself can do still comes from the cluster, and so does the
share of the wire that collectives reach: that of the network on levels called rail or spine, that of links on others.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from symconfig.descriptor.cluster import ClusterDescriptor, Level
from symconfig.descriptor.json_strict import load_json_strict
from symconfig.descriptor.mesh import NETWORK, Mesh, MeshLevel
from symconfig.descriptor.model import PositiveInt, Strict
from symconfig.descriptor.validate import validate
from symconfig.descriptor.yaml_strict import load_yaml_strict
from symconfig.errors import InputError, Problem

MAX_GPUS = 2**20


class LevelOfFile(Strict):
    name: str = Field(min_length=1, max_length=100)
    size: PositiveInt
    bandwidth_bytes_per_s: Annotated[float, Field(gt=0)]
    latency_s: Annotated[float, Field(ge=0)] = 0.0
    mesh: bool = False


class MeshFile(Strict):
    schema_: Literal["symconfig.mesh/1"] = Field(alias="schema")
    levels: tuple[LevelOfFile, ...] = Field(min_length=1, max_length=4)  # as a cluster's

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [level.name for level in self.levels]
        wrong = [f"levels name {name} twice" for name in dict.fromkeys(names) if names.count(name) > 1]
        if prod(level.size for level in self.levels) > MAX_GPUS:
            wrong.append(f"levels hold more than {MAX_GPUS:,} GPUs together")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


def load_mesh(path: str | Path) -> Mesh:
    """A mesh file; levels of one domain vanish. Raises InputError with all that is wrong."""
    path = Path(path)
    document = load_json_strict(path) if path.suffix == ".json" else load_yaml_strict(path)
    levels = validate(document, MeshFile).levels
    return Mesh(tuple(MeshLevel(**level.model_dump()) for level in levels if level.size > 1))


def of_cluster(cluster: ClusterDescriptor, gpus: int) -> Mesh:
    """The levels that so many GPUs span, each with more than one domain of the level inside it; one that is as fast as
    that inside is a part of it, with its longer latency.

    They fill whole domains of every level, or lie in one of them and divide it. Raises InputError.
    """
    _check(cluster, gpus)
    levels, inside = [], 1
    for level in cluster.levels:
        domain = gpus if level.size is None else min(level.size, gpus)
        if domain > inside:
            levels.append(_level(level, domain, inside))
            if len(levels) > 1 and _alike(levels[-2], levels[-1]):
                inner, outer = levels[-2:]
                levels[-2:] = [replace(inner, size=inner.size * outer.size, latency_s=outer.latency_s)]
        inside = domain
    return Mesh(tuple(levels))


def _alike(inner: MeshLevel, outer: MeshLevel) -> bool:
    switched = not (inner.mesh or outer.mesh) and {inner.name, outer.name} <= NETWORK
    return switched and inner.bandwidth_bytes_per_s == outer.bandwidth_bytes_per_s


def _level(level: Level, domain: int, inside: int) -> MeshLevel:
    """A part of a mesh without a switch has the links among its own GPUs only."""
    thin = level.oversubscription.value if level.oversubscription else 1.0
    links = (domain - 1) / (level.size - 1) if level.mesh and level.size else 1.0
    bandwidth = level.bandwidth_bytes_per_s.value / thin * links
    return MeshLevel(level.name, domain // inside, bandwidth, level.latency_s.value, level.mesh)


def _check(cluster: ClusterDescriptor, gpus: int) -> None:
    problems = []
    if gpus < 1:
        problems.append(Problem("a mesh needs a GPU", field="gpus", got=str(gpus), need=">= 1"))
    if cluster.max_gpus is not None and gpus > cluster.max_gpus:
        need = f"at most {cluster.max_gpus}"
        problems.append(Problem("is more than the cluster has", field="gpus", got=str(gpus), need=need))
    uneven = next((level for level in cluster.levels if level.size and gpus > 0 and _uneven(level.size, gpus)), None)
    if uneven is not None and uneven.size is not None:
        problems.append(
            Problem(
                f"does not fill whole domains of {uneven.name}",
                field="gpus",
                got=str(gpus),
                need=f"a multiple of {uneven.size}, or what divides it",
                hint=f"{_near(cluster, gpus)}, or a mesh file that says how many lie in each domain",
            )
        )
    if problems:
        raise InputError(problems)


def _uneven(domain: int, gpus: int) -> bool:
    return gpus % domain != 0 if gpus >= domain else domain % gpus != 0


def _near(cluster: ClusterDescriptor, gpus: int) -> str:
    """The nearest counts on both sides that fill whole domains: 1 always does, and multiples of all sizes do."""
    sizes = [level.size for level in cluster.levels if level.size is not None]

    def fits(count: int) -> bool:
        return not any(_uneven(size, count) for size in sizes)

    below = next(count for count in range(gpus - 1, 0, -1) if fits(count))
    above = next(count for count in range(gpus + 1, gpus + max(sizes) + 1) if fits(count))
    return f"{below} or {above}" if cluster.max_gpus is None or above <= cluster.max_gpus else str(below)
