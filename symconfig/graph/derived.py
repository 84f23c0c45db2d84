"""What follows from a block under a scheme, as records of one rank: work, collectives, activations and weights; and
what recomputation keeps and runs again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile

from symconfig.graph.block import DISCARDING, Place
from symconfig.graph.dims import ONE, Monomial
from symconfig.graph.layout import Kind
from symconfig.graph.operator import Element, Leg

GRADIENTS = 2  # of a product of two activations, one for each of them


class Phase(StrEnum):
    """Name the pass to which work belongs; INPUT is the whole backward except weight gradients."""

    FORWARD = "forward"
    INPUT = "backward"  # gradient of the inputs, and whatever is not a weight gradient
    WEIGHT = "weight-gradient"


@dataclass(frozen=True, slots=True)
class Matmul:
    """Describe a product batch x [m, k] x [k, n] on one rank. turns: number of launches by the host."""

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
    """Describe fused attention on one rank: `queries` rows (batch x sequence x heads), each against `keys` keys (a
    symbol).
    """

    op: str
    phase: Phase
    queries: Monomial
    keys: str
    channels: tuple[str, ...]  # of the query-key product and of the value product
    steps: Monomial  # kernels, one after the other: a ring runs one for each part of the keys


@dataclass(frozen=True, slots=True)
class Traffic:
    """Describe a memory-bound operator on one rank. moved: elements read or written, by element type. turns: number of
    launches by the host.

    among: number of experts between which slots are sorted, as one expert needs no sorting; None: nothing is sorted.
    products: multiply-adds inside its kernels, with the number of times that they are computed.
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
    """Describe one collective of a block. elements: of the larger buffer on one rank. times: number of runs.

    owner: the operator that it serves, with which it is repeated under recomputation. behind: the (operator, phase)
    that can overlap it, if the framework does so. chunked: that operator makes or needs the transferred tensor, so
    that both must be split into chunks to overlap. leg: of its owner. copies: transferred copies per token; groups,
    chosen_groups: of the experts that they go to.
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
    """Describe an activation on one rank and the operators that need it; `recompute_policy` decides from this whether
    it is kept.

    producer: None for the block's inputs. needed_by: operators whose backward needs it. consumers: operators that
    read it. storage: the name of the memory of which it is a view in the layout of production; "" if it is none.
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
    """Describe a weight on one rank. Its gradient is partial over `data_axes` (which ZeRO shards) and `other_axes`.

    elements: on one rank; gathered: while it is used, if it is stored in shards over GTP, else None; whole: of the
    unsharded weight. row: elements on one rank that make one element of the output; 1 for a vector. table, joined: see
    Weight. matrix: an operand of a product, separately for each expert; no bias, and no kernel of a convolution.
    """

    name: str
    elements: Monomial
    gathered: Monomial | None
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
    """Describe memory alive during an operator's backward, on one rank: gradients of its inputs, outputs and weight.

    moved: (elements, element type) of each. weight: elements of the weight's gradient, or None. layer: the operator
    belongs to a transformer layer. buffer: elements of a buffer that is never freed, or None.
    """

    op: str
    moved: tuple[tuple[Monomial, Element], ...]
    weight: Monomial | None
    layer: bool
    buffer: Monomial | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedBlock:
    """Hold everything that follows from a block under a scheme, on one rank."""

    name: str
    sequence_parallel: bool
    work: tuple[Task, ...]
    collectives: tuple[Collective, ...]
    held: tuple[Held, ...]
    weights: tuple[WeightShard, ...]
    workspaces: tuple[Workspace, ...]
    modules: tuple[tuple[str, tuple[str, ...]], ...]  # operator -> recompute modules, outermost first
    stops_early: bool
    boundary: Monomial  # elements of the residual stream that the next stage receives, on one rank
    place: Place = Place.LAYER
    legs: tuple[tuple[str, Leg], ...] = ()  # of those operators that stand on the tokens' way to their experts
    # What `recompute_policy` made of it, which is asked for again with every table of costs.
    recomputed: dict[tuple[frozenset[str], frozenset[str]], Policy] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )

    def on(self, *legs: Leg) -> frozenset[str]:
        """Return the names of the operators on these legs of the expert dispatch; empty if there are none."""
        return frozenset(op for op, leg in self.legs if leg in legs)


@dataclass(frozen=True, slots=True)
class Policy:
    """Say for each tensor and operator of a block what recomputation does with it.

    kept[j]: tensor j of `block.held` is kept. rerun: operators that run again in the backward, with their
    collectives. units: for each recomputed module, indices of the tensors that exist together while its backward
    runs. offloaded[j]: tensor j is kept in host memory.
    """

    kept: tuple[bool, ...]
    rerun: frozenset[str]
    units: tuple[tuple[int, ...], ...]
    offloaded: tuple[bool, ...]


def recompute_policy(block: DerivedBlock, modules: frozenset[str], offload: frozenset[str] = frozenset()) -> Policy:
    """Return what the block keeps and recomputes if these modules are recomputed; cached in `block.recomputed` by
    (modules, offload). offload: operators whose saved tensors move to host memory, unless an operator outside the set
    needs them, too. Each operator belongs to its outermost module in `modules`, or to none.

    A tensor made outside of modules, or a block input, is kept if a backward needs it or a recomputed operator reads
    it. One made inside is kept only if the module does not discard its outputs and an operator outside the module needs
    it in its backward, or reads it and is recomputed; if it is dropped but needed, the module's unit lists the dropped
    tensors of its storage. If one view of a storage is kept, all are. All operators in modules rerun; with
    `block.stops_early`, not those after the maker of the last dropped tensor that a backward needs in each.
    """
    if (known := block.recomputed.get((modules, offload))) is not None:
        return known
    unit = {op: next((name for name in names if name in modules), None) for op, names in block.modules}
    rerun = {op: name for op, name in unit.items() if name}
    kept: list[bool] = []
    units: dict[str, list[int]] = {}
    storages: dict[str | int, list[int]] = {}
    for index, held in enumerate(block.held):
        mine = unit[held.producer] if held.producer else None
        users = {unit[op] for op in held.needed_by} | {rerun[op] for op in held.consumers if op in rerun}
        kept.append(bool(users - {mine} and mine not in DISCARDING) if mine else bool(users))
        storages.setdefault(held.storage or index, []).append(index)
        if mine and held.needed_by and not kept[-1]:
            units.setdefault(mine, []).append(index)
    for views in storages.values():
        if any(kept[index] for index in views):
            for index in views:
                kept[index] = True
    wholes = [storages[held.storage or index] for index, held in enumerate(block.held)]
    revived = (dict.fromkeys(o for index in some for o in wholes[index] if not kept[o]) for some in units.values())
    if block.stops_early:
        makers = {held.producer for keep, held in zip(kept, block.held, strict=True) if held.needed_by and not keep}
        for module in {*rerun.values()}:
            last_first = [op for op, name in reversed(rerun.items()) if name == module]
            for op in takewhile(lambda op: op not in makers, last_first):
                del rerun[op]
    offloaded = (
        keep and len(held.needed_by) > 0 and offload.issuperset(held.needed_by)
        for keep, held in zip(kept, block.held, strict=True)
    )
    made = Policy(tuple(kept), frozenset(rerun), tuple(map(tuple, revived)), tuple(offloaded))
    block.recomputed[modules, offload] = made
    return made
