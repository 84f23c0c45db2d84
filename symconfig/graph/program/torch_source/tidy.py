"""A program as small as it can be said."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

from symconfig.graph.operator import Operator, Split, Use, Work
from symconfig.graph.program.program import Program


def tidy(program: Program) -> Program:
    """Return an equivalent program with chains of element-wise operators joined, dims that always occur together
    merged, and unused dims removed.
    """
    result = merging(joined(program))[0]
    used = {dim for tensor in result.tensors.values() for dim in tensor.dims}
    used |= {loop for op in result.operators for loop in op.loops}
    return replace(result, sizes={dim: size for dim, size in result.sizes.items() if dim in used})


def merging(program: Program) -> tuple[Program, Mapping[str, tuple[str, ...]]]:
    """Return the program with adjacent dims merged wherever possible, and for each dim that remains the dims merged
    into it; dims without any are absent.
    """
    inside: dict[str, tuple[str, ...]] = {}
    while pairs := _mergeable_pairs(program):
        for outer, inner in pairs.items():
            inside[outer] = (*inside.get(outer, ()), inner, *inside.pop(inner, ()))
        program = _renamed(program, pairs)
    return program, inside


def _mergeable_pairs(program: Program) -> dict[str, str]:
    """Return disjoint pairs {outer dim: inner dim} that can be merged in all tensors and operators; empty if there are
    none. Batch dims are never merged.
    """
    pairs = _neighbours(program)
    for loops, dims in _along(program):  # windows, that go over a dim in steps
        for loop, dim in zip(loops, dims, strict=True):
            if program.sizes[loop] != program.sizes[dim]:
                pairs.pop(loop, None)
    for op in program.operators:
        for outer in [loop for loop in op.loops if loop in pairs]:
            if not _can_merge(op, outer, pairs[outer]):
                del pairs[outer]
    for outer in [outer for outer in pairs if {outer, pairs[outer]} & program.batch]:
        del pairs[outer]
    inner = set(pairs.values())
    pairs = {outer: inside for outer, inside in pairs.items() if outer not in inner}
    while wrong := {  # where loops would become one and their dims not, or the reverse
        loop if loop in pairs else dim
        for loops, dims in _along(program)
        for loop, dim in zip(loops, dims, strict=True)
        if (loop in pairs) != (dim in pairs)
    }:
        pairs = {outer: inside for outer, inside in pairs.items() if outer not in wrong}
    return pairs


def _neighbours(program: Program) -> dict[str, str]:
    """Return {dim: next dim} where the two are always adjacent, in this order, in all tensors and in all operands'
    loops.
    """
    after: dict[str, set[str]] = {}
    before: dict[str, set[str]] = {}
    for row in (*(tensor.dims for tensor in program.tensors.values()), *(loops for loops, _ in _along(program))):
        for one, other in pairwise(("", *row, "")):
            after.setdefault(one, set()).add(other)
            before.setdefault(other, set()).add(one)
    followers = {dim: next(iter(follows)) for dim, follows in after.items() if dim and len(follows) == 1}
    return {outer: inner for outer, inner in followers.items() if inner and before[inner] == {outer}}


def _along(program: Program) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield (loops, dims of its tensor) for each operand and residue of the program."""
    for op in program.operators:
        for operand in (*op.inputs, *op.outputs, *op.residues):
            yield operand.loops, operand.tensor.dims


def _can_merge(op: Operator, outer: str, inner: str) -> bool:
    """Return whether merging two loops leaves the operator unchanged: both are in it, both or neither contracted, and
    split alike by splits of one loop without halo.
    """
    if inner not in op.loops or (outer in op.contracted) != (inner in op.contracted):
        return False
    one, other = ([split for split in op.splits if loop in split.loops] for loop in (outer, inner))
    if any(len(split.loops) > 1 or split.halo for split in (*one, *other)):
        return False
    return not one or (bool(other) and replace(other[0], loops=one[0].loops) == one[0])


def _renamed(program: Program, pairs: dict[str, str]) -> Program:
    """Return the program with each pair of dims merged under the outer one's name, whose size is the product."""
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


def joined(program: Program) -> Program:
    """Return the program with each chain of element-wise operators as one operator, without the tensors
    inside a chain.
    """
    operators = program.operators
    leader = leaders(program)
    parts: dict[int, list[Operator]] = {}
    for index, op in enumerate(operators):
        parts.setdefault(leader[index], []).append(op)
    made = tuple(_chain_operator(program, parts[index]) for index in sorted(parts))
    seen = {operand.name for op in made for operand in (*op.inputs, *op.outputs, *op.residues)}
    seen |= {parameter.tensor.name for parameter in program.parameters} | set(program.outputs)
    tensors = {name: tensor for name, tensor in program.tensors.items() if name in seen}
    return replace(program, operators=made, tensors=tensors)


def leaders(program: Program) -> list[int]:
    """Return, for each operator, the index of the last operator of its chain; its own index if it joins none.

    An operator joins the chain that alone reads its results, if both are memory-bound, iterate alike, and neither a
    program output nor a useful partial sum is lost.
    """
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
    """Return the names of linear operators that add tensors of several origins: they can work on partial sums, but
    could not inside a chain.

    An origin is the result of a product or a tensor that several operators read (`shared`); element-wise steps keep
    the origin of their input.
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
    """Return whether every loop that `op` sums over is a loop of the last operator's outputs, as in a norm, or no
    split of `op` runs along such a loop; only then the sum stays inside the chain.
    """
    out = {loop for output in last.outputs for loop in output.loops}
    mine = {loop for output in op.outputs for loop in output.loops}
    return set(op.loops) - mine <= out or not any(split.loops[0] not in mine for split in op.splits)


def _chain_operator(program: Program, parts: Sequence[Operator]) -> Operator:
    """Return a chain as one operator, named after the last; a single operator is returned as it is.

    It reads what no part makes, saves what any part saves, and its traffic is that of all parts. Its path is that of
    the innermost module with all parts.
    """
    last = parts[-1]
    if len(parts) == 1:
        return last
    made = {operand.name: operand for op in parts for operand in op.outputs}
    inputs = tuple(dict.fromkeys(operand for op in parts for operand in op.inputs if operand.name not in made))
    saves = {use.name: made.get(use.name, use) for op in parts for use in op.saves}
    loops = tuple(dict.fromkeys(loop for op in parts for loop in op.loops))
    out = {loop for operand in last.outputs for loop in operand.loops}

    def once(uses: Iterable[Use]) -> float:
        return sum(use.tensor.bytes(program.sizes) for use in uses)

    levels = zip(*(op.path.split(".") for op in parts), strict=False)  # the innermost module that has all of them
    whole = once((*inputs, *last.outputs))
    moved = [(once((*op.inputs, *op.outputs)), op.traffic) for op in parts]
    return replace(
        last,
        loops=loops,
        inputs=inputs,
        splits=tuple(_splits(parts, loops)),
        contracted=tuple(loop for loop in loops if loop not in out),
        saves=tuple(sorted(saves.values(), key=lambda use: use.name in made)),
        linear=all(op.linear for op in parts),
        traffic=(sum(size * by[0] for size, by in moved) / whole, sum(size * by[1] for size, by in moved) / whole),
        path=".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)),
    )


def _splits(parts: Sequence[Operator], loops: Iterable[str]) -> Iterable[Split]:
    """Yield a split for each loop that all parts with this loop can split. Partial results are reduced inside, except
    one of the last part alone.
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
