"""Recompute as a set of tensors that are not kept and of operators that run again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from symconfig.graph.derived import DerivedBlock


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


def apply(block: DerivedBlock, modules: frozenset[str], offload: frozenset[str] = frozenset()) -> Policy:
    """Return what the block keeps and recomputes if these modules are recomputed; cached in `block.recomputed` by
    (modules, offload). offload: operators whose saved tensors move to host memory, unless an operator outside the set
    needs them, too.
    """
    known: dict[object, Policy] = block.recomputed
    key = (modules, offload)
    if key not in known:
        known[key] = _apply(block, modules, offload)
    return known[key]


def _apply(block: DerivedBlock, modules: frozenset[str], offload: frozenset[str]) -> Policy:
    """Return the policy of `apply`, uncached. Each operator belongs to its outermost module in `modules`, or to none.

    A tensor made outside of modules, or a block input, is kept if a backward needs it or a recomputed operator reads
    it. One made inside is kept only if the module does not discard its outputs and an operator outside the module needs
    it in its backward, or reads it and is recomputed; if it is dropped but needed, the module's unit lists the dropped
    tensors of its storage. If one view of a storage is kept, all are. Offloaded are kept tensors that only operators in
    `offload` need. All operators in modules rerun; with `block.stops_early`, not those behind the last dropped tensor
    needed in each.
    """
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
    revived = (dict.fromkeys(o for index in made for o in wholes[index] if not kept[o]) for made in units.values())
    away = _bits(place for place, (op, _) in enumerate(block.modules) if op in offload) if offload else 0
    moved = tuple(
        [keep and needed > 0 and not needed & ~away for keep, (_, needed, _) in zip(kept, users.tensors, strict=True)]
    )
    repeated = frozenset([op for (op, _), name in zip(block.modules, unit, strict=True) if name])
    if block.stops_early:
        repeated -= _after_last_needed(
            block, {op: name for (op, _), name in zip(block.modules, unit, strict=True)}, kept
        )
    return Policy(tuple(kept), repeated, tuple(map(tuple, revived)), moved)


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
    """Return the block's users, built from `block.held` and `block.modules`; cached in `block.recomputed`. Raise
    KeyError for a held tensor whose operator is not in `block.modules`.
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
    """Return, over all recomputed modules in `unit` (operator to module or None), the operators behind the last one
    that makes a dropped tensor that a backward needs; all of a module without one.
    """
    makers = {held.producer for keep, held in zip(kept, block.held, strict=True) if held.needed_by and not keep}
    result = set()
    for module in {name for name in unit.values() if name}:
        for op in reversed([op for op, name in unit.items() if name == module]):
            if op in makers:
                break
            result.add(op)
    return frozenset(result)
