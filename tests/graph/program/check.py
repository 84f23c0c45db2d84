"""What is wrong with a program, whatever its source: the oracle that programs of every source are held against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

from symconfig.errors import Problem
from symconfig.graph.operator import Operator, Use, Work
from symconfig.graph.program.program import Program

_Name = TypeVar("_Name", bound=Hashable)


def problems(program: Program) -> list[Problem]:
    """Return sentences about its dims, tensors and operators; `field` is the name of the one that is wrong."""
    faults = [*_dims(program), *_tensors(program), *_once(program), *_fed(program), *_ends(program), *_order(program)]
    for op in program.operators:
        faults += _operator(program, op)
    return list(dict.fromkeys(faults))


def _dims(program: Program) -> Iterator[Problem]:
    for dim, size in program.sizes.items():
        if size < 1:
            yield Problem("a dim has no elements", field=dim, got=str(size), need=">= 1")
    for dim in sorted(program.batch - program.sizes.keys()):
        yield Problem("the batch is counted by an undefined dim", field=dim)


def _tensors(program: Program) -> Iterator[Problem]:
    for name, tensor in program.tensors.items():
        for dim in dict.fromkeys(tensor.dims):
            if dim not in program.sizes:
                yield Problem("the tensor has an undefined dim", field=name, got=dim)
        for dim in _twice(tensor.dims):
            yield Problem("the tensor has a dim twice", field=name, got=dim, hint="a second name of the same size")
        if not tensor.element_bytes > 0:
            yield Problem("an element has no bytes", field=name, got=f"{tensor.element_bytes:g}")
    for parameter in program.parameters:
        if program.tensors.get(parameter.tensor.name) != parameter.tensor:
            yield Problem("the parameter is not the tensor of its name", field=parameter.tensor.name)


def _once(program: Program) -> Iterator[Problem]:
    """Yield names of operators that stand twice, and tensors that come from several."""
    for name in _twice(op.name for op in program.operators):
        yield Problem("two operators have the same name", field=name)
    fed = [*program.inputs, *(parameter.tensor.name for parameter in program.parameters)]
    made = [operand.name for op in program.operators for operand in (*op.outputs, *op.residues)]
    for name in _twice((*fed, *made)):
        yield Problem("the tensor comes from two places", field=name)


def _fed(program: Program) -> Iterator[Problem]:
    """Yield a problem for each input, and whatever is read, that does not exist."""
    for name in program.inputs:
        if name not in program.tensors:
            yield Problem("the input is not a tensor of the program", field=name)
    there = {*program.inputs, *(parameter.tensor.name for parameter in program.parameters)}
    there.update(operand.name for op in program.operators for operand in op.outputs)
    for op in program.operators:
        for operand in op.inputs:
            if operand.name in program.tensors and operand.name not in there:
                yield Problem("reads a tensor that is neither fed nor made", field=op.name, got=operand.name)


def _ends(program: Program) -> Iterator[Problem]:
    made = {operand.name for op in program.operators for operand in op.outputs}
    if not program.outputs:
        yield Problem("the program has no output", field=program.name)
    for name in program.outputs:
        if name not in made:
            yield Problem("the output is never made", field=name)


def _order(program: Program) -> Iterator[Problem]:
    later = Counter(operand.name for op in program.operators for operand in op.outputs)
    for op in program.operators:
        for operand in op.inputs:
            if later[operand.name]:
                yield Problem("reads a tensor before it is made", field=op.name, got=operand.name)
        later.subtract(operand.name for operand in op.outputs)


def _operator(program: Program, op: Operator) -> Iterator[Problem]:
    for operand in (*op.inputs, *op.outputs, *op.residues):
        yield from _operand(program, op, operand, window=operand in op.inputs)
    loops = set(op.loops)
    for loop in op.loops:
        if loop not in program.sizes:
            yield Problem("a loop runs along an undefined dim", field=op.name, got=loop)
    for loop in _twice(op.loops):
        yield Problem("a loop is listed twice", field=op.name, got=loop)
    for loop in op.contracted:
        if loop not in loops:
            yield Problem("sums over what is not a loop", field=op.name, got=loop)
        elif op.work is Work.MATMUL and any(loop in operand.loops for operand in op.outputs):
            yield Problem("sums over a loop of its output", field=op.name, got=loop)
    yield from _splits(op)


def _splits(op: Operator) -> Iterator[Problem]:
    for split in op.splits:
        if not split.loops:
            yield Problem("a split of no loop", field=op.name)
        if split.sums < 0 or split.halo < 0:
            yield Problem("a split with negative sums or halo", field=op.name, got=", ".join(split.loops))
        for loop in split.loops:
            if loop not in op.loops:
                yield Problem("splits what is not a loop", field=op.name, got=loop)
    for loops in _twice(split.loops for split in op.splits):
        yield Problem("a split is listed twice", field=op.name, got=", ".join(loops))


def _operand(program: Program, op: Operator, operand: Use, window: bool) -> Iterator[Problem]:
    """Yield problems of an operand. window: its dims may be longer than the loops along them, whole strides or with
    rows that neighbours share.

    A dim that a split names with its loop is a piece of it (heads of a fused width), or shared along it.
    """
    tensor = program.tensors.get(operand.name)
    if tensor is None:
        yield Problem("uses an undefined tensor", field=op.name, got=operand.name)
        return
    if tensor is not operand.tensor and tensor != operand.tensor:
        yield Problem("the operand is not the tensor of its name", field=op.name, got=operand.name)
    if len(operand.loops) != len(tensor.dims):
        got = f"{operand.name}[{', '.join(operand.loops)}]"
        yield Problem("the rank does not match", field=op.name, got=got, need=f"{len(tensor.dims)} dims")
        return
    for loop in _twice(operand.loops):
        yield Problem("a loop runs along two dims of a tensor", field=op.name, got=f"{loop} of {operand.name}")
    for loop, dim in zip(operand.loops, tensor.dims, strict=True):
        if loop not in op.loops:
            yield Problem("a tensor's loop is missing in the nest", field=op.name, got=f"{loop} of {operand.name}")
        if loop == dim or loop not in program.sizes or dim not in program.sizes:
            continue
        turns, size = program.sizes[loop], program.sizes[dim]
        halo = any(split.halo and split.loops[0] == loop for split in op.splits if split.loops)
        pieces = any({loop, dim} <= set(split.loops) for split in op.splits)
        longer = window and turns > 0 and size > turns and (halo or size % turns == 0)
        if turns != size and not (pieces or longer):
            got = f"{turns} as {loop}, {size} as {dim} of {operand.name}"
            yield Problem("a dim is used with two sizes", field=op.name, got=got)


def _twice(names: Iterable[_Name]) -> list[_Name]:
    names = tuple(names)
    if len(set(names)) == len(names):
        return []
    return [name for name, count in Counter(names).items() if count > 1]
