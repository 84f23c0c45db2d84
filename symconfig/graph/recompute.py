"""Recompute as a set of tensors that are not kept and of operators that run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from symconfig.graph.derived import DerivedBlock


@dataclass(frozen=True, slots=True)
class Policy:
    """0/1 over a block's tensors and operators.

    kept[j]: tensor j of `block.held` is kept. again: operators run again, with their collectives.
    units: for each recomputed module, the tensors that come back to life together while its backward runs.
    offloaded: of the kept ones, those that wait in host memory.
    """

    kept: tuple[bool, ...]
    again: frozenset[str]
    units: tuple[tuple[int, ...], ...]
    offloaded: tuple[bool, ...]


def apply(block: DerivedBlock, modules: frozenset[str], offload: frozenset[str] = frozenset()) -> Policy:
    """What the block keeps and repeats when these modules are recomputed.

    offload: operators whose needed tensors wait in host memory, where nobody else needs them.
    """
    unit = {op: next((name for name in names if name in modules), None) for op, names in block.modules}
    kept = []
    units: dict[str, list[int]] = {}
    for index, held in enumerate(block.held):
        mine = unit.get(held.producer) if held.producer else None
        elsewhere = any(
            unit[op] != mine
            for op in (*held.needed_by, *held.consumers)
            if unit[op] is not None or op in held.needed_by
        )
        if mine is None:
            entering = any(unit[op] is not None for op in held.consumers)
            kept.append(bool(held.needed_by) or entering)
            continue
        stays = elsewhere and mine not in block.discards
        kept.append(stays)
        if not stays and held.needed_by:
            units.setdefault(mine, []).append(index)
    wholes = _wholes(block)
    for index in [index for index, stays in enumerate(kept) if stays]:
        for other in wholes[index]:
            kept[other] = True
    revived = (dict.fromkeys(o for index in unit for o in wholes[index] if not kept[o]) for unit in units.values())
    moved = tuple(
        keep and bool(held.needed_by) and offload.issuperset(held.needed_by)
        for keep, held in zip(kept, block.held, strict=True)
    )
    again = frozenset(op for op, name in unit.items() if name)
    if block.stops_early:
        again -= _after_last_needed(block, unit, kept)
    return Policy(tuple(kept), again, tuple(map(tuple, revived)), moved)


def _wholes(block: DerivedBlock) -> list[list[int]]:
    """For each tensor, those that live as long as it: itself, and the other views of its storage."""
    views: dict[str, list[int]] = {}
    for index, held in enumerate(block.held):
        views.setdefault(held.storage, []).append(index)
    return [views[held.storage] if held.storage else [index] for index, held in enumerate(block.held)]


def _after_last_needed(block: DerivedBlock, unit: Mapping[str, str | None], kept: Sequence[bool]) -> frozenset[str]:
    """Operators at the end of each recomputed module that make nothing that its backward needs."""
    makers = {held.producer for keep, held in zip(kept, block.held, strict=True) if held.needed_by and not keep}
    result = set()
    for module in {name for name in unit.values() if name}:
        for op in reversed([op for op, name in unit.items() if name == module]):
            if op in makers:
                break
            result.add(op)
    return frozenset(result)
