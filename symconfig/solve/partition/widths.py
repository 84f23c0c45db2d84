"""The dims that tensor parallelism splits, told from a program's structure where it has no names for them.

A stream runs through the program: the dim that most weights have. A width is what one weight's product makes and a
later one sums away into the stream (heads, an MLP's width), what a look-up sums away into it, or what is made of it and
summed away by a loss (the vocabulary). Dims that are split together, as heads with the heads that they share or a dim
with what it is reshaped into, are one width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from symconfig.graph.operator import Operator, Use, Work
from symconfig.graph.program.program import Program


@dataclass(frozen=True, slots=True)
class Widths:
    """outside: of all ranks' weights. inside: of those that experts have one each of."""

    outside: frozenset[str]
    inside: frozenset[str]


def widths(program: Program, experts: frozenset[str], never: frozenset[str]) -> Widths:
    """Return the widths. never: dims that are none, as the batch and the sequence."""
    weighted = list(_weighted(program))
    stream = _stream(weighted)
    if stream is None:
        return Widths(frozenset(), frozenset())
    together = _together(program)
    apart = [(op, weight) for op, weight in weighted if not experts & set(weight.loops)]
    joined = [(op, weight) for op, weight in weighted if experts & set(weight.loops)]
    outside = _made_and_summed(apart, stream, together) | _ends(program, apart, stream)
    # Experts behind a projection read a stream of their own.
    narrow = next((loop for op, weight in joined for loop in weight.loops if loop in op.contracted), stream)
    inside = _made_and_summed(joined, narrow, together)
    barred = {together[dim] for dim in (*never, *experts, stream, narrow)}

    def allowed(dims: Iterable[str]) -> frozenset[str]:
        roots = {together[dim] for dim in dims} - barred
        return frozenset(dim for dim in program.sizes if together[dim] in roots)

    return Widths(allowed(outside), allowed(inside) - allowed(outside))


def _weighted(program: Program) -> Iterator[tuple[Operator, Use]]:
    """Yield products with a weight, and look-ups of one by examples' ids: not by positions, which all of them share."""
    weights = {parameter.tensor.name for parameter in program.parameters}
    for op in program.operators:
        weight = next((operand for operand in op.inputs if operand.name in weights), None)
        if weight is None:
            continue
        looks_up = set(op.contracted) & set(weight.loops) and program.batch & set(op.loops)
        if op.work is Work.MATMUL or looks_up:
            yield op, weight


def _stream(weighted: Iterable[tuple[Operator, Use]]) -> str | None:
    counted = Counter(loop for _, weight in weighted for loop in weight.loops)
    return counted.most_common(1)[0][0] if counted else None


def _together(program: Program) -> dict[str, str]:
    """Return, for every dim, the first of those that are split with it."""
    first: dict[str, str] = {}

    def root(dim: str) -> str:
        while first.get(dim, dim) != dim:
            dim = first[dim]
        return dim

    for op in program.operators:
        for split in op.splits:
            for loop in split.loops[1:]:
                first[root(loop)] = root(split.loops[0])
    return {dim: root(dim) for dim in program.sizes}


def _given(op: Operator, weight: Use) -> list[str]:
    """Return the dims that a product has from its weight alone."""
    moving = {loop for operand in op.inputs[:2] if operand.name != weight.name for loop in operand.loops}
    return [loop for loop in weight.loops if loop not in moving and loop not in op.contracted]


def _made_and_summed(weighted: Iterable[tuple[Operator, Use]], stream: str, together: Mapping[str, str]) -> set[str]:
    """Return what is summed away, the outermost dims only: channels go with their head."""
    made: set[str] = set()
    summed: set[str] = set()
    for op, weight in weighted:
        given, gone = _given(op, weight), [loop for loop in weight.loops if loop in op.contracted][:1]
        product = op.work is Work.MATMUL
        made.update(together[dim] for dim in (given if product else gone))
        if stream in given:
            summed.update(together[dim] for dim in gone)
    return made & summed


def _ends(program: Program, weighted: Iterable[tuple[Operator, Use]], stream: str) -> set[str]:
    """Return dims made of the stream that are summed away beside something without a gradient, as a loss does with
    labels.
    """
    made = {dim for op, weight in weighted if stream in op.contracted for dim in _given(op, weight)[:1]}
    losses = (op for op in program.operators if op.work is Work.MEMORY and _has_constants(program, op))
    return {loop for op in losses for loop in op.contracted if loop in made}


def _has_constants(program: Program, op: Operator) -> bool:
    return any(not operand.tensor.gradient for operand in op.inputs)
