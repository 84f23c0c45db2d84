"""What follows from a block under a scheme, as records of one rank: work, collectives, activations and weights; and
what recomputation keeps and runs again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from symconfig.graph.block import Place
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
    discards: frozenset[str]
    stops_early: bool
    boundary: Monomial  # elements of the residual stream that the next stage receives, on one rank
    place: Place = Place.LAYER
    legs: tuple[tuple[str, Leg], ...] = ()  # of those operators that stand on the tokens' way to their experts
    # What `recompute_policy` made of it, which is asked for again with every table of costs.
    recomputed: dict[Any, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

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
    key, known = (modules, offload), block.recomputed
    if key in known:
        made: Policy = known[key]
        return made
    users = _users(block)
    unit = [next((name for name in names if name in modules), None) for _, names in block.modules]
    members = {name: _bits(place for place, mine in enumerate(unit) if mine == name) for name in unit if name}
    anywhere = _bits(place for place, mine in enumerate(unit) if mine)
    kept = []
    units: dict[str, list[int]] = {}
    for index, (producer, needed, consumed) in enumerate(users.tensors):
        mine = None if producer is None else unit[producer]
        if mine is None:
            kept.append(bool(needed or consumed & anywhere))
            continue
        elsewhere = (needed | consumed & anywhere) & ~members[mine]
        stays = bool(elsewhere) and mine not in block.discards
        kept.append(stays)
        if not stays and needed:
            units.setdefault(mine, []).append(index)
    for views in users.views:
        if any(kept[index] for index in views):
            for index in views:
                kept[index] = True
    wholes = users.wholes
    revived = (dict.fromkeys(o for index in some for o in wholes[index] if not kept[o]) for some in units.values())
    away = _bits(place for place, (op, _) in enumerate(block.modules) if op in offload) if offload else 0
    moved = tuple(
        [keep and needed > 0 and not needed & ~away for keep, (_, needed, _) in zip(kept, users.tensors, strict=True)]
    )
    repeated = frozenset([op for (op, _), name in zip(block.modules, unit, strict=True) if name])
    if block.stops_early:
        repeated -= _after_last_needed(
            block, {op: name for (op, _), name in zip(block.modules, unit, strict=True)}, kept
        )
    known[key] = made = Policy(tuple(kept), repeated, tuple(map(tuple, revived)), moved)
    return made


@dataclass(frozen=True, slots=True)
class _Users:
    """Hold who makes and reads each tensor of a block; operators are given by their index in `block.modules`.

    tensors: for each (maker or None, bit set of operators whose backward needs it, bit set of consumers). wholes:
    for each the tensors that share its storage, itself included. views: storages with more than one tensor.
    """

    tensors: tuple[tuple[int | None, int, int], ...]
    wholes: tuple[tuple[int, ...], ...]
    views: tuple[tuple[int, ...], ...]


def _users(block: DerivedBlock) -> _Users:
    """Return who makes and reads each tensor of `block.held`: (maker's index or None, bit sets of the operators whose
    backward needs it and that read it), and which tensors share a storage. Indices are those of `block.modules`. Cached
    in `block.recomputed`. Raise KeyError for a held tensor whose operator is not in `block.modules`.
    """
    if _Users not in block.recomputed:
        place = {op: place for place, (op, _) in enumerate(block.modules)}
        storages: dict[str, list[int]] = {}
        for index, held in enumerate(block.held):
            if held.storage:
                storages.setdefault(held.storage, []).append(index)
        block.recomputed[_Users] = _Users(
            tuple(
                (
                    place[held.producer] if held.producer else None,
                    _bits(place[op] for op in held.needed_by),
                    _bits(place[op] for op in held.consumers),
                )
                for held in block.held
            ),
            tuple(tuple(storages.get(held.storage, (index,))) for index, held in enumerate(block.held)),
            tuple(tuple(views) for views in storages.values() if len(views) > 1),
        )
    users: _Users = block.recomputed[_Users]
    return users


def _bits(places: Iterable[int]) -> int:
    return sum({1 << place for place in places})


def _after_last_needed(block: DerivedBlock, unit: Mapping[str, str | None], kept: Sequence[bool]) -> frozenset[str]:
    """Return, over all recomputed modules in `unit` (operator to module or None), the operators after the last one that
    makes a dropped tensor that a backward needs; all of a module without one.
    """
    makers = {held.producer for keep, held in zip(kept, block.held, strict=True) if held.needed_by and not keep}
    result = set()
    for module in {name for name in unit.values() if name}:
        for op in reversed([op for op, name in unit.items() if name == module]):
            if op in makers:
                break
            result.add(op)
    return frozenset(result)
