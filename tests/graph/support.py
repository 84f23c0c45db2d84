"""Derived blocks of sample models, and their symbols as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.behaviour import changed
from symconfig.graph.derive import derive
from symconfig.graph.derived import Collective, DerivedBlock, Phase, Policy, recompute_policy
from symconfig.graph.implementation import Implementation
from symconfig.graph.model import blocks, dim_sizes
from symconfig.graph.operator import ELEMENT_BYTES
from symconfig.graph.scheme import Scheme

PLAIN, SEQUENCE, ULYSSES = Scheme(False), Scheme(True), Scheme(True, "a2a")
SHARED = Scheme(True, shared_heads=True)
AXES = ("tp", "cp", "dp", "ep", "etp")


def block(model: ModelDescriptor, kind: str = "dense", scheme: Scheme = PLAIN, **how: Any) -> DerivedBlock:
    return derive(blocks(model, changed(Implementation(), **how), scheme.shared_heads)[kind], scheme)


def numbers(
    model: ModelDescriptor, *, seq_length: int = 2048, micro_batch: int = 1, **degrees: int
) -> dict[str, float]:
    """Every symbol of a derived block; degrees that are not given are 1."""
    unknown = set(degrees) - set(AXES)
    assert not unknown, unknown
    return {
        **dim_sizes(model),
        **dict.fromkeys(AXES, 1),
        **degrees,
        "seq_length": seq_length,
        "micro_batch": micro_batch,
        "expert_imbalance": 1.0,
    }


def chosen(derived: DerivedBlock, axis: str, phase: Phase | None = None, tensor: str | None = None) -> list[Collective]:
    return [
        c for c in derived.collectives if axis in c.axes and phase in (None, c.phase) and tensor in (None, c.tensor)
    ]


def tally(collectives: Iterable[Collective], values: dict[str, float]) -> Counter[tuple[str, float]]:
    """How many collectives of each kind and size, a collective that runs three times counted so."""
    result: Counter[tuple[str, float]] = Counter()
    for c in collectives:
        result[str(c.kind), c.elements.value(values)] += c.times
    return result


def held_bytes(derived: DerivedBlock, policy: Policy, values: dict[str, float]) -> float:
    return sum(
        held.elements.value(values) * ELEMENT_BYTES[held.element]
        for held, kept in zip(derived.held, policy.kept, strict=True)
        if kept
    )


def kept(derived: DerivedBlock, *modules: str) -> set[str]:
    """Names of the tensors that stay when `modules` are recomputed."""
    policy = recompute_policy(derived, frozenset(modules))
    return {held.tensor for held, stays in zip(derived.held, policy.kept, strict=True) if stays}
