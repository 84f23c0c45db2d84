"""What one mesh axis can do at a node of a network, and where each way leaves it in the node's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from symconfig.graph.operator import Operator, Split, Tensor
from symconfig.graph.program.program import Parameter


class Place(NamedTuple):
    """An axis's place in a tensor, and in its gradient."""

    forward: int
    backward: int


@dataclass(frozen=True, slots=True)
class Option:
    """One mesh axis's use at a node. parts: the most that it may be cut into along all axes; 0: no limit.

    split: of an operator, the loops that the axis splits. zero: of a parameter, the lowest of optimizer state (1),
    gradient (2) and weight (3) that lie flat over the axis, with all before it.
    """

    name: str
    split: Split | None = None
    parts: int = 0
    zero: int = 0


@dataclass(frozen=True)
class Port:
    """A tensor at a node: for each option the axis' place. output: made here."""

    tensor: Tensor
    sizes: tuple[int, ...]
    places: tuple[Place, ...]
    output: bool

    @cached_property
    def elements(self) -> int:
        return prod(self.sizes)

    @property
    def bytes(self) -> float:
        return self.elements * self.tensor.element_bytes

    @cached_property
    def forward(self) -> NDArray[np.int64]:
        """Return the place forward: [options]."""
        return np.array([place.forward for place in self.places], dtype=np.int64)

    @cached_property
    def backward(self) -> NDArray[np.int64]:
        """Return the place backward: [options]."""
        return np.array([place.backward for place in self.places], dtype=np.int64)

    @cached_property
    def alike(self) -> NDArray[np.int64]:
        """Return a number for each option, the same for those of the same place: [options]."""
        known: dict[Place, int] = {}
        return np.array([known.setdefault(place, len(known)) for place in self.places], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Of a node that may not be split freely: the product of the axes, of one level or (level "") of all, that take one
    of some options. options: whether each is one of them.
    """

    options: tuple[bool, ...]
    parts: int
    level: str = ""


@dataclass(frozen=True)
class Node:
    """times: how many nodes of the whole program it stands for. run: the repeat that it is part of, or -1. weight: of a
    copy, that it is one of a parameter. fixed: how it has to be split; by default as is best.
    """

    name: str
    options: tuple[Option, ...]
    ports: tuple[Port, ...]  # inputs, then outputs, then residues
    operator: Operator | None = None
    parameter: Parameter | None = None
    times: int = 1
    run: int = -1
    weight: bool = False
    fixed: tuple[Fixed, ...] = ()

    @property
    def copy(self) -> bool:
        """Tell whether the node neither computes nor holds anything."""
        return self.operator is None and self.parameter is None

    @cached_property
    def splits(self) -> Mapping[str, NDArray[np.bool_]]:
        """Return, for each loop that some option splits, whether an option does: [options]."""
        members: dict[str, list[bool]] = {}
        for index, option in enumerate(self.options):
            for loop in option.split.loops if option.split else ():
                members.setdefault(loop, [False] * len(self.options))[index] = True
        return {loop: np.array(those) for loop, those in members.items()}
