"""What follows from a block under a scheme, as records: work, collectives, activations and weights on one rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from symconfig.graph.block import Place
from symconfig.graph.layout import Kind
from symconfig.graph.monomial import ONE, Monomial
from symconfig.graph.operator import Element, Leg
from symconfig.graph.scheme import Scheme

GRADIENTS = 2  # of a product of two activations, one for each of them


class Phase(StrEnum):
    FORWARD = "forward"
    INPUT = "backward"  # gradient of the inputs, and whatever is not a weight gradient
    WEIGHT = "weight-gradient"


@dataclass(frozen=True, slots=True)
class Matmul:
    """batch x [m, k] x [k, n] on one rank. turns: how often the host launches it."""

    op: str
    phase: Phase
    batch: Monomial
    m: Monomial
    n: Monomial
    k: Monomial
    low_precision: bool
    turns: Monomial


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Fused attention on one rank: `queries` rows (batch x sequence x heads), each against `keys` keys."""

    op: str
    phase: Phase
    queries: Monomial
    keys: str
    channels: tuple[str, ...]  # of the query-key product and of the value product
    steps: Monomial  # kernels, one after the other: a ring runs one for each part of the keys


@dataclass(frozen=True, slots=True)
class Traffic:
    """A memory-bound operator on one rank: elements moved, by element type. turns: how often the host launches it.

    among: how many there are of what it puts in order; one alone is in order. products: multiply-adds inside its
    kernels, with how often they are made.
    """

    op: str
    phase: Phase
    moved: tuple[tuple[Monomial, Element], ...]
    turns: Monomial
    among: Monomial | None = None
    products: tuple[tuple[Monomial, int], ...] = ()


Task = Matmul | AttentionWork | Traffic


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a block. `elements`: of the larger buffer on one rank; `times`: how often it runs each time.

    owner: the operator that it serves; with that operator it is run again under recompute.
    behind: the work it may hide behind (operator, phase), if the framework overlaps it. chunked: that work makes or
    needs what travels, so that both must be cut into pieces to run at once. leg: of its owner. copies: how many of
    what travels are copies of one token; groups, chosen_groups: of the experts that they go to.
    """

    tensor: str
    kind: Kind
    axes: tuple[str, ...]
    elements: Monomial
    element: Element
    phase: Phase
    owner: str
    behind: tuple[str, Phase] | None = None
    times: int = 1
    chunked: bool = False
    leg: Leg = Leg.APART
    copies: Monomial = ONE
    groups: Monomial = ONE
    chosen_groups: Monomial = ONE


@dataclass(frozen=True, slots=True)
class Held:
    """An activation on one rank, and who needs it: recompute.py decides from this what is kept.

    storage: the name of what it is a view of, where it lies as it was produced.
    """

    tensor: str
    elements: Monomial
    element: Element
    producer: str | None
    needed_by: tuple[str, ...]
    consumers: tuple[str, ...]
    storage: str = ""


@dataclass(frozen=True, slots=True)
class WeightShard:
    """A weight on one rank. Its gradient is partial over `data_axes` (ZeRO cuts along them) and `other_axes`.

    row: of its elements on one rank, those that make one element of the output; 1 for a vector. table, joined: see
    Weight. matrix: a product's operand, each expert's for itself; no bias, and no kernel of a convolution.
    """

    name: str
    elements: Monomial
    whole: Monomial
    frozen: bool
    quantised: bool
    expert: bool
    data_axes: tuple[str, ...]
    other_axes: tuple[str, ...]
    row: Monomial
    table: bool
    joined: bool
    matrix: bool


@dataclass(frozen=True, slots=True)
class Workspace:
    """Bytes alive while an operator's backward runs: gradients of its inputs, outputs and weight on one rank.

    weight: elements of the weight's gradient, or None. layer: the operator belongs to a transformer layer. buffer:
    elements of a buffer that stays when the operator is done.
    """

    op: str
    moved: tuple[tuple[Monomial, Element], ...]
    weight: Monomial | None
    layer: bool
    buffer: Monomial | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedBlock:
    """A block under a scheme."""

    name: str
    scheme: Scheme
    work: tuple[Task, ...]
    collectives: tuple[Collective, ...]
    held: tuple[Held, ...]
    weights: tuple[WeightShard, ...]
    workspaces: tuple[Workspace, ...]
    modules: tuple[tuple[str, tuple[str, ...]], ...]  # operator -> recompute modules, outermost first
    discards: frozenset[str]
    stops_early: bool
    boundary: Monomial  # elements of the residual stream that the next stage receives, on one rank
    place: Place = Place.LAYER
    legs: tuple[tuple[str, Leg], ...] = ()  # of those operators that stand on the tokens' way to their experts
    # What recompute.py made of it, which is asked for again with every table of costs.
    recomputed: dict[Any, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def on(self, *legs: Leg) -> frozenset[str]:
        """Return the names of the operators on these legs of the expert dispatch; empty if there are none."""
        return frozenset(op for op, leg in self.legs if leg in legs)
