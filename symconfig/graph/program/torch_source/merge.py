"""Dims that are side by side wherever they are, as one dim again.

A view of a tensor makes dims out of one (two halves of a head's channels, to be rotated), and within an operator they
may be needed apart; where no operator of the program does any more, and none can split the outer and not the inner,
they are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from symconfig.graph.operator import Operator, Split, Use
from symconfig.graph.program.program import Program

Pairs = dict[str, str]  # outer -> inner


def merged(program: Program) -> Program:
    """Return the program with as few dims as say the same."""
    return merging(program)[0]


def merging(program: Program) -> tuple[Program, Mapping[str, tuple[str, ...]]]:
    """Return the program with as few dims as say the same, and for each dim those that it now has inside."""
    inside: dict[str, tuple[str, ...]] = {}
    while pairs := _pairs(program):
        for outer, inner in pairs.items():
            inside[outer] = (*inside.get(outer, ()), inner, *inside.pop(inner, ()))
        program = _renamed(program, pairs)
    return program, inside


def _pairs(program: Program) -> Pairs:
    """Return disjoint pairs, for all tensors and operators at once."""
    pairs = _neighbours(program)
    for loops, dims in _along(program):  # windows, that go over a dim in steps
        for loop, dim in zip(loops, dims, strict=True):
            if program.sizes[loop] != program.sizes[dim]:
                pairs.pop(loop, None)
    for op in program.operators:
        for outer in [loop for loop in op.loops if loop in pairs]:
            if not _together(op, outer, pairs[outer]):
                del pairs[outer]
    for outer in [outer for outer in pairs if {outer, pairs[outer]} & program.batch]:
        del pairs[outer]
    inner = set(pairs.values())
    pairs = {outer: inside for outer, inside in pairs.items() if outer not in inner}
    while wrong := {dim for seen, dims in _along(program) for dim in _unlike(seen, dims, pairs)}:
        pairs = {outer: inside for outer, inside in pairs.items() if outer not in wrong}
    return pairs


def _neighbours(program: Program) -> Pairs:
    """Return each dim with the one that always follows, which always follows it."""
    after: dict[str, set[str]] = {}
    before: dict[str, set[str]] = {}
    for row in _rows(program):
        for one, other in pairwise(("", *row, "")):
            after.setdefault(one, set()).add(other)
            before.setdefault(other, set()).add(one)
    followers = {dim: next(iter(follows)) for dim, follows in after.items() if dim and len(follows) == 1}
    return {outer: inner for outer, inner in followers.items() if inner and before[inner] == {outer}}


def _rows(program: Program) -> Iterator[tuple[str, ...]]:
    for tensor in program.tensors.values():
        yield tensor.dims
    for operand, _ in _along(program):
        yield operand


def _along(program: Program) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield, of each operand, its loops and its tensor's dims."""
    for op in program.operators:
        for operand in (*op.inputs, *op.outputs, *op.residues):
            yield operand.loops, operand.tensor.dims


def _unlike(loops: tuple[str, ...], dims: tuple[str, ...], pairs: Pairs) -> Iterator[str]:
    """Yield where loops would become one and their dims not, or the reverse."""
    for loop, dim in zip(loops, dims, strict=True):
        if (loop in pairs) != (dim in pairs):
            yield loop if loop in pairs else dim


def _together(op: Operator, outer: str, inner: str) -> bool:
    if inner not in op.loops or (outer in op.contracted) != (inner in op.contracted):
        return False
    one, other = ([split for split in op.splits if loop in split.loops] for loop in (outer, inner))
    if any(len(split.loops) > 1 or split.halo for split in (*one, *other)):
        return False
    return not one or (bool(other) and replace(other[0], loops=one[0].loops) == one[0])


def _renamed(program: Program, pairs: Pairs) -> Program:
    gone = set(pairs.values())
    sizes = {dim: size * program.sizes[pairs[dim]] if dim in pairs else size for dim, size in program.sizes.items()}

    def kept(dims: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dim for dim in dims if dim not in gone)

    tensors = {name: replace(tensor, dims=kept(tensor.dims)) for name, tensor in program.tensors.items()}

    def operands(some: tuple[Use, ...]) -> tuple[Use, ...]:
        return tuple(Use(tensors[operand.name], kept(operand.loops)) for operand in some)

    def splits(op: Operator) -> Iterator[Split]:
        for split in op.splits:
            if not set(split.loops) & gone:
                yield split

    operators = tuple(
        replace(
            op,
            loops=kept(op.loops),
            inputs=operands(op.inputs),
            outputs=operands(op.outputs),
            saves=operands(op.saves),
            splits=tuple(splits(op)),
            contracted=kept(op.contracted),
        )
        for op in program.operators
    )
    parameters = tuple(replace(p, tensor=tensors[p.tensor.name]) for p in program.parameters)
    left: Mapping[str, int] = {dim: size for dim, size in sizes.items() if dim not in gone}
    return replace(program, sizes=left, tensors=tensors, parameters=parameters, operators=operators)
