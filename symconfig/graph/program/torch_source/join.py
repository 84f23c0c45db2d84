"""Chains of operators bound by memory as one operator each, with the bytes that the chain moves and keeps.

PyTorch computes a norm, a rotation or an activation in several element-wise steps. For a plan they are one: what only
one of them makes and only others of them read is split as they are. Nothing is assumed to be faster for it: the traffic
is that of all steps, and what autograd keeps between them becomes residues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

from symconfig.graph.operator import Operator, Split, Use, Work
from symconfig.graph.program.program import Program


def joined(program: Program) -> Program:
    """Return the program in fewer operators."""
    operators = program.operators
    leader = leaders(program)
    parts: dict[int, list[Operator]] = {}
    for index, op in enumerate(operators):
        parts.setdefault(leader[index], []).append(op)
    made = tuple(_one(program, parts[index]) for index in sorted(parts))
    seen = {operand.name for op in made for operand in (*op.inputs, *op.outputs, *op.residues)}
    seen |= {parameter.tensor.name for parameter in program.parameters} | set(program.outputs)
    tensors = {name: tensor for name, tensor in program.tensors.items() if name in seen}
    return replace(program, operators=made, tensors=tensors)


def leaders(program: Program) -> list[int]:
    """Return, for each operator, the last one of its chain: an operator joins those that alone read what it makes."""
    operators = program.operators
    readers: dict[str, list[tuple[int, Use]]] = {}
    for index, op in enumerate(operators):
        for operand in op.inputs:
            readers.setdefault(operand.name, []).append((index, operand))
    leader = list(range(len(operators)))
    simple, linear = [_simple(op) for op in operators], [op.linear for op in operators]
    sums = _sums(program, {tensor for tensor, some in readers.items() if len(some) > 1})
    ends = set(program.outputs)
    for index in reversed(range(len(operators))):
        op = operators[index]
        reads = [(at, operand, output) for output in op.outputs for at, operand in readers.get(output.name, [])]
        chains = {leader[at] for at, _, _ in reads}
        if not simple[index] or len(chains) != 1 or any(output.name in ends for output in op.outputs):
            continue
        last = operators[chains.pop()]
        alike = all(operand.loops == output.loops for _, operand, output in reads)
        free = op.name not in sums or linear[leader[reads[0][0]]]
        if alike and free and _simple(last) and _inside(op, last) and op.backward == last.backward:
            leader[index] = leader[reads[0][0]]
            linear[leader[index]] &= op.linear
    return leader


def _sums(program: Program, shared: Collection[str]) -> set[str]:
    """Return the operators that add up tensors of several origins: they may work on partial sums, and would not in a
    chain.

    An origin is what a product made, or what several read: steps of one activation have a single one.
    """
    weights = {parameter.tensor.name for parameter in program.parameters}
    origins: dict[str, frozenset[str]] = {}
    sums = set()
    for op in program.operators:
        flowing = (x.name for x in op.inputs if x.gradient and x.name not in weights)
        mine = frozenset[str]().union(*(origins.get(tensor, {tensor}) for tensor in flowing))
        if op.linear and len(mine) > 1:
            sums.add(op.name)
        for output in op.outputs:
            end = not _simple(op) or output.name in shared
            origins[output.name] = frozenset({output.name}) if end else mine
    return sums


def _simple(op: Operator) -> bool:
    return op.work is Work.MEMORY and all(len(split.loops) == 1 and not split.halo for split in op.splits)


def _inside(op: Operator, last: Operator) -> bool:
    """Tell whether what an operator sums away is there again in the end, as in a norm: only then the sum stays
    inside.
    """
    out = {loop for output in last.outputs for loop in output.loops}
    mine = {loop for output in op.outputs for loop in output.loops}
    return set(op.loops) - mine <= out or not any(split.loops[0] not in mine for split in op.splits)


def _one(program: Program, parts: Sequence[Operator]) -> Operator:
    last = parts[-1]
    if len(parts) == 1:
        return last
    made = {operand.name: operand for op in parts for operand in op.outputs}
    inputs = tuple(dict.fromkeys(operand for op in parts for operand in op.inputs if operand.name not in made))
    saves = {use.name: made.get(use.name, use) for op in parts for use in op.saves}
    loops = tuple(dict.fromkeys(loop for op in parts for loop in op.loops))
    out = {loop for operand in last.outputs for loop in operand.loops}
    whole = _bytes(program, (*inputs, *last.outputs))
    moved = [(_bytes(program, (*op.inputs, *op.outputs)), op.traffic) for op in parts]
    return replace(
        last,
        loops=loops,
        inputs=inputs,
        splits=tuple(_splits(parts, loops)),
        contracted=tuple(loop for loop in loops if loop not in out),
        saves=tuple(sorted(saves.values(), key=lambda use: use.name in made)),
        linear=all(op.linear for op in parts),
        traffic=(sum(size * by[0] for size, by in moved) / whole, sum(size * by[1] for size, by in moved) / whole),
        path=_common([op.path for op in parts]),
    )


def _splits(parts: Sequence[Operator], loops: Iterable[str]) -> Iterable[Split]:
    """Return the loops that no part must have whole; partial results are summed up, but for a single one that is the
    last.
    """
    for loop in loops:
        sums = 0
        for op in parts:
            if loop in op.loops:
                split = next((split for split in op.splits if split.loops == (loop,)), None)
                if split is None:
                    break
                partial = all(loop not in output.loops for output in op.outputs)
                sums += split.sums or int(partial and (op is not parts[-1] or sums > 0))
        else:
            yield Split((loop,), sums)


def _bytes(program: Program, operands: Iterable[Use]) -> float:
    """Return the bytes of reading or writing each once."""
    return sum(operand.tensor.bytes(program.sizes) for operand in operands)


def _common(paths: Sequence[str]) -> str:
    """Return the innermost module that has all of them in it."""
    levels = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))
