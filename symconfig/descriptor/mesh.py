"""The GPUs as a hierarchy of levels, and the axes that its levels are split into, innermost first.

A mesh comes from a cluster and a number of its GPUs, or from a YAML file that lists levels:

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

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, product
from math import prod
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from symconfig.descriptor.cluster import NETWORK, ClusterDescriptor, Level
from symconfig.descriptor.document import read_text, read_yaml
from symconfig.descriptor.json_strict import load_json_strict
from symconfig.descriptor.strict import MAX_GPUS, PositiveInt, Strict, validate
from symconfig.errors import Problem, Problems
from symconfig.format import gb_per_s, several


@dataclass(frozen=True, slots=True)
class Axis:
    """One factor of a level's size. stride: distance in ranks between neighbours along the axis."""

    level: str
    size: int
    stride: int

    @property
    def name(self) -> str:
        return f"{self.level}{self.size}@{self.stride}"


@dataclass(frozen=True, slots=True)
class MeshLevel:
    """One level of the mesh: `size` domains of the level inside, joined by links.

    bandwidth_bytes_per_s: of one GPU, one direction, on the wire. latency_s: of one message. mesh: direct links between
    all pairs, without a switch.
    """

    name: str
    size: int
    bandwidth_bytes_per_s: float
    latency_s: float
    mesh: bool = False


@dataclass(frozen=True, slots=True)
class Mesh:
    """Levels, innermost first; the number of GPUs is the product of their sizes."""

    levels: tuple[MeshLevel, ...]

    @property
    def gpus(self) -> int:
        return prod(level.size for level in self.levels)

    def __str__(self) -> str:
        """Return the levels with their bandwidths, and the number of GPUs: `8·nvlink (450 GB/s), 8 GPUs`; for a mesh
        without levels `one GPU, 1 GPU`.
        """
        levels = (f"{one.size}·{one.name} ({gb_per_s(one.bandwidth_bytes_per_s)} GB/s)" for one in self.levels)
        return f"{' x '.join(levels) or 'one GPU'}, {several(self.gpus, 'GPU')}"

    def axes(self, factors: tuple[tuple[int, ...], ...] | None = None) -> tuple[Axis, ...]:
        """Return the axes that the levels are split into, innermost first, with each axis's stride in ranks.

        factors: for each level its factors, innermost first, whose product is its size; None: its primes, smallest
        first.
        """
        factors = factors if factors is not None else tuple(primes(level.size) for level in self.levels)
        result, stride = [], 1
        for level, cut in zip(self.levels, factors, strict=True):
            assert prod(cut) == level.size
            for size in cut:
                result.append(Axis(level.name, size, stride))
                stride *= size
        return tuple(result)

    def shapes(self, most: int = 4) -> tuple[tuple[Axis, ...], ...]:
        """Return ways of splitting the levels into at most `most` axes in all, each as a tuple of axes.

        Only the split into primes if that has few enough axes. Else those splits with as many axes as possible, spread
        as evenly as possible among the levels, each level's factors in ascending order. ValueError if there are more
        levels than `most`.
        """
        if len(self.axes()) <= most:
            return (self.axes(),)
        every = product(*(range(1, len(primes(level.size)) + 1) for level in self.levels))
        # The number of axes, most first, and how unevenly they are spread.
        orders = {each: (-sum(each), sum(n * n for n in each)) for each in every if sum(each) <= most}
        best = min(orders.values())
        even = [each for each, order in orders.items() if order == best]
        cuts = (product(*(_splits(level.size, n) for level, n in zip(self.levels, each, strict=True))) for each in even)
        return tuple(self.axes(cut) for some in cuts for cut in some)


def primes(number: int) -> tuple[int, ...]:
    """Return the prime factors with repetition, smallest first; () for 1 and less."""
    result, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            result.append(divisor)
            number //= divisor
        divisor += 1 if divisor * divisor <= number else max(number - divisor, 1)
    return tuple(result)


def _splits(size: int, parts: int) -> list[tuple[int, ...]]:
    """Return all nondecreasing factorisations of `size` into `parts` factors above 1.

    If `size` has fewer prime factors, into as many as it has. Of 8 in 2: (2, 4); of 128: (2, 64), (4, 32), (8, 16). Of
    1: one empty tuple.
    """
    parts = min(parts, len(primes(size)))
    if parts <= 1:
        return [(size,)] if size > 1 else [()]
    cuts = [
        (first, *rest)
        for first in range(2, size + 1)
        if size % first == 0
        for rest in _splits(size // first, parts - 1)
        if rest and len(rest) == parts - 1 and first <= rest[0]
    ]
    return cuts or [(size,)]


class LevelOfFile(Strict):
    name: str = Field(min_length=1, max_length=100)
    size: PositiveInt
    bandwidth_bytes_per_s: Annotated[float, Field(gt=0)]
    latency_s: Annotated[float, Field(ge=0)] = 0.0
    mesh: bool = False


class MeshFile(Strict):
    schema_: Literal["symconfig.mesh/1"] = Field(alias="schema")
    levels: tuple[LevelOfFile, ...] = Field(min_length=1, max_length=4)  # as a cluster's

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each name that occurs twice, and for more than MAX_GPUS GPUs."""
        names = [level.name for level in self.levels]
        yield from (f"levels name {name} twice" for name in dict.fromkeys(names) if names.count(name) > 1)
        if prod(level.size for level in self.levels) > MAX_GPUS:
            yield f"levels hold more than {MAX_GPUS:,} GPUs together"


def load_mesh(path: str | Path) -> Mesh:
    """Load a mesh from a YAML or JSON file; levels of size 1 are dropped. Raises InputError with all problems."""
    path = Path(path)
    document = load_json_strict(path) if path.suffix == ".json" else read_yaml(read_text(path), str(path))
    levels = validate(document, MeshFile).levels
    return Mesh(tuple(MeshLevel(**level.model_dump()) for level in levels if level.size > 1))


def of_cluster(cluster: ClusterDescriptor, gpus: int) -> Mesh:
    """Return the mesh of `gpus` GPUs of a cluster: the levels that they span, innermost first, without those of size 1.

    Network levels of equal bandwidth are one, with the innermost's name and the latency of the innermost that reaches
    all its GPUs. Bandwidths include oversubscription, and of direct links only those among these GPUs. Raises
    InputError for less than 1 GPU, more than the cluster has, and a number that neither fits into one domain of a level
    nor fills whole ones.
    """
    _check(cluster, gpus)
    levels, inside = [], 1
    for span in _spans(cluster):
        domain = min(span[-1].size or gpus, gpus)
        if domain > inside:
            reached = next(level for level in span if (level.size or gpus) >= domain)
            level, latency_s = span[0], reached.latency_s.value
            # Of direct links without a switch only those among these GPUs count.
            links = (domain - 1) / (level.size - 1) if level.mesh and level.size else 1.0
            levels.append(MeshLevel(level.name, domain // inside, _wire(level) * links, latency_s, level.mesh))
        inside = domain
    return Mesh(tuple(levels))


def _spans(cluster: ClusterDescriptor) -> list[list[Level]]:
    """Return the cluster's levels in groups, innermost first.

    A group is one level, or adjacent switched network levels of equal bandwidth after oversubscription.
    """
    spans: list[list[Level]] = []
    for level in cluster.levels:
        inner = spans[-1][-1] if spans else None
        switched = inner and not (inner.mesh or level.mesh) and {inner.name, level.name} <= NETWORK
        if inner and switched and _wire(inner) == _wire(level):
            spans[-1].append(level)
        else:
            spans.append([level])
    return spans


def _wire(level: Level) -> float:
    """Return the level's bandwidth per GPU in bytes/s after oversubscription."""
    return level.bandwidth_bytes_per_s.value / (level.oversubscription.value if level.oversubscription else 1.0)


def _check(cluster: ClusterDescriptor, gpus: int) -> None:
    """Raise InputError, with all problems, for less than 1 GPU, more than the cluster has, or unfilled domains.

    Of levels whose domains are neither filled nor large enough for all GPUs only the innermost is named, with the
    nearest numbers that fit.
    """
    problems = Problems()
    if gpus < 1:
        problems.add(Problem("a mesh needs a GPU", field="gpus", got=str(gpus), need=">= 1"))
    if cluster.max_gpus is not None and gpus > cluster.max_gpus:
        need = f"at most {cluster.max_gpus}"
        problems.add(Problem("is more than the cluster has", field="gpus", got=str(gpus), need=need))
    if (uneven := _uneven(cluster, gpus)) is not None:
        below = next(number for number in range(gpus - 1, 0, -1) if _uneven(cluster, number) is None)
        above = next(number for number in count(gpus + 1) if _uneven(cluster, number) is None)
        around = f"{below} or {above}" if cluster.max_gpus is None or above <= cluster.max_gpus else str(below)
        what, need = f"does not fill whole domains of {uneven.name}", f"a multiple of {uneven.size}, or fewer"
        hint = f"{around}, or a mesh file that says how many lie in each domain"
        problems.add(Problem(what, field="gpus", got=str(gpus), need=need, hint=hint))
    problems.check()


def _uneven(cluster: ClusterDescriptor, gpus: int) -> Level | None:
    """Return the innermost level of which `gpus` GPUs need more than one domain and leave one partly empty, or None."""
    ends = (span[-1] for span in _spans(cluster))
    return next((level for level in ends if level.size and gpus > level.size and gpus % level.size), None)
