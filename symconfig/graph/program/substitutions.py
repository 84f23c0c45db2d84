"""Substitutions of operators that leave a program's results and gradients as they are, up to rounding: the table RULES.

A rule yields every place of a program where its pattern stands, with the operators that go there instead. Products are
einsums over named loops, so that their rules hold for any rank. Absent of the rules of Unity (OSDI 2022) and TASO:

- those that partition, combine, replicate and reduce: layouts are the tensor solvers' own part;
- one product in several: more and smaller kernels, and no program file states such a product;
- joined filters of convolutions, norms folded into weights: they change what a window reads, or what is trained;
- those of concatenations, slices and transposes: no function of a program states which elements these move;
- activations fused into products: no product is priced by what its epilogue reads.

Parameters are only concatenated, never added or multiplied once for all, so that they are trained as before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, takewhile
from math import prod

from symconfig.graph.operator import Gradients, Operator, Split, Tensor, Use, Work, loops_of
from symconfig.graph.program.build import ALL, FUNCTIONS, Function, build, nothing
from symconfig.graph.program.program import Parameter, Program

POINTWISE = {name for name, one in FUNCTIONS.items() if one.dims == Function(nothing).dims and not one.needs}
POINTWISE |= {"*", "dropout", "fused"}


@dataclass(frozen=True, slots=True)
class Substitution:
    """Describe operators `at` these indices, and the `new` ones that stand for them where the last of them stood.

    early: where the first of them stood. words: what is done, for people. sizes: of all loops that are new, at least.
    parameters: new ones.
    """

    at: tuple[int, ...]
    new: tuple[Operator, ...]
    words: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    early: bool = False


@dataclass(frozen=True)
class Graph:
    """Hold a program with what makes and what reads each tensor."""

    program: Program

    @cached_property
    def maker(self) -> Mapping[str, int]:
        return {use.name: index for index, op in enumerate(self.program.operators) for use in op.outputs}

    @cached_property
    def readers(self) -> Mapping[str, set[int]]:
        found: dict[str, set[int]] = {}
        for index, op in enumerate(self.program.operators):
            for use in op.inputs:
                found.setdefault(use.name, set()).add(index)
        return found

    @cached_property
    def names(self) -> set[str]:
        """Return the names of all tensors and operators; `free` adds those that it gives."""
        return {*self.program.tensors, *(op.name for op in self.program.operators)}

    @cached_property
    def weights(self) -> frozenset[str]:
        """Return the names of the parameters that one operator alone reads."""
        names = (one.tensor.name for one in self.program.parameters)
        return frozenset(name for name in names if len(self.readers.get(name, ())) == 1)

    def only(self, use: Use) -> int | None:
        """Return the operator that makes a tensor and nothing else, if the tensor has one reader and is no output of
        the program; else None.
        """
        index = self.maker.get(use.name)
        if index is None or len(self.readers[use.name]) > 1 or use.name in self.program.outputs:
            return None
        return index if len(self.program.operators[index].outputs) == 1 else None

    def einsum(self, op: Operator) -> bool:
        """Return whether an operator multiplies two tensors, sums loops, and does nothing else."""
        sizes, uses = self.program.sizes, (*op.inputs, *op.outputs)
        simple = op.function == "*" and op.work is Work.MATMUL and not (op.residues or op.holds or op.parts)
        two = len(op.inputs) == 2 and op.inputs[0].name != op.inputs[1].name
        fit = (sizes[dim] == sizes[loop] for use in uses for dim, loop in zip(use.tensor.dims, use.loops, strict=True))
        return simple and two and len(op.outputs) == 1 and all(fit)

    def free(self, name: str) -> str:
        """Return this name, with primes until nothing has it and it was not returned before."""
        while name in self.names:
            name += "'"
        self.names.add(name)
        return name

    def made(self, op: Operator, sign: str, a: Use, b: Use, dims: Sequence[str]) -> Use:
        """Return a new tensor that is made of two on the way to an operator's result: as wide as the wider one, with a
        gradient if one has it.
        """
        name = self.free(f"{op.name}.{sign.join(use.name.rpartition('.')[2] for use in (a, b))}")
        width = max(a.tensor.element_bytes, b.tensor.element_bytes)
        return Use(Tensor(name, tuple(dims), width, a.gradient or b.gradient))


def unified(
    op: Operator, use: Use, loops: Sequence[str], taken: Collection[str], sizes: dict[str, int]
) -> dict[str, str]:
    """Return {loop: new name} for all loops of an operator, such that its operand `use` is over `loops`, in order.

    A loop that `use` lacks keeps its name, with primes added while that is `taken` or has another size. Adds the sizes
    of new names to `sizes`.
    """
    names = dict(zip(use.loops, loops, strict=True))
    for loop in op.loops:
        if loop not in names:
            new = loop
            while new in taken or new in names.values() or sizes.get(new, sizes[loop]) != sizes[loop]:
                new += "'"
            names[loop], sizes[new] = new, sizes[loop]
    return names


def held(op: Operator) -> set[str]:
    """Return the loops of an operator that no axis may split alone."""
    alone = {split.loops[0] for split in op.splits if len(split.loops) == 1 and not split.sums and not split.halo}
    return {*op.loops} - alone


def merge(graph: Graph) -> Iterator[Substitution]:
    """Yield x·A, x·B -> x·[A B], with both results: A and B are parameters, each read once."""
    operators, products = graph.program.operators, dict[str, list[int]]()
    for index, op in enumerate(operators):
        able = graph.einsum(op) or (op.function == "*" and op.parts)
        if able and op.inputs[1].name in graph.weights and op.inputs[0].name not in graph.weights:
            products.setdefault(op.inputs[0].name, []).append(index)
    for some in products.values():
        for number, first in enumerate(some):
            for second in some[number + 1 :]:
                parts = (part for at in (first, second) for part in operators[at].parts or (operators[at],))
                joined = _joined(graph, sorted(parts, key=lambda op: op.name))
                if joined is not None:
                    op, sizes = joined
                    names = " and ".join(sorted((operators[first].name, operators[second].name)))
                    weight = Parameter(
                        op.inputs[1].tensor, _path(graph, op.parts, (operators[first], operators[second]))
                    )
                    words = f"{names} in one product, which read {op.inputs[0].name}"
                    yield Substitution((first, second), (op,), words, sizes, (weight,), early=True)


def _joined(graph: Graph, parts: Sequence[Operator]) -> tuple[Operator, dict[str, int]] | None:
    """Return one product for several of one input, with the size of its joined loop; None if they do not fit together.

    Loops of the weights that results have and the input has not: the first and last ones of equal sizes stay, and those
    between them become one, in which one product's columns follow the other's. Of heads that share keys, [kv, group, c]
    and [kv, c], that is [kv, group·c+c], as Megatron-LM stores them.
    """
    sizes, (x, w) = graph.program.sizes, parts[0].inputs
    own = [[loop for loop in part.inputs[1].loops if loop not in part.inputs[0].loops] for part in parts]
    fewest, lead, trail = min(map(len, own)), 0, 0
    while lead < fewest - 1 and len({sizes[some[lead]] for some in own}) == 1:
        lead += 1
    while trail < fewest - 1 - lead and len({sizes[some[-1 - trail]] for some in own}) == 1:
        trail += 1
    if not fewest:
        return None
    at, pieces = w.loops.index(own[0][0]), [some[lead : len(some) - trail] for some in own]
    start, behind = at + lead, len(w.loops) - at - len(own[0]) + trail  # of the joined loops in the weights
    outputs, kept = list[Use](), set[str]()
    for part, some, piece in zip(parts, own, pieces, strict=True):
        mine, weight = part.inputs
        end = len(weight.loops) - behind
        same = (*mine.loops, *weight.loops[:start], *weight.loops[end:])
        theirs = (*x.loops, *w.loops[:start], *w.loops[len(w.loops) - behind :])
        if list(weight.loops[at : at + len(some)]) != some or len(same) != len(theirs):
            return None
        if len(weight.loops) - len(some) != len(w.loops) - len(own[0]):
            return None
        names = dict(zip(same, theirs, strict=True))
        if [names[loop] for loop in same] != [*theirs] or {*piece} & {*theirs, *parts[0].loops} - {*pieces[0]}:
            return None
        if replace(weight.tensor, name="", dims=()) != replace(w.tensor, name="", dims=()):
            return None
        summed = {names.get(loop, loop) for loop in part.contracted}
        if summed != {*parts[0].contracted} or {*piece} & {*part.contracted} or _kernel(part) != _kernel(parts[0]):
            return None
        kept |= {names.get(loop, loop) for loop in held(part)}
        outputs.append(part.outputs[0].renamed(*names.items()))
    others, name = {*parts[0].loops} - {*pieces[0]}, "+".join(map("·".join, pieces))
    if {use.name for use in parts[0].saves} - {x.name, w.name}:
        return None

    def joined(some: Sequence[str]) -> tuple[str, ...]:
        return (*some[:start], name, *some[len(some) - behind :])

    tensor = replace(
        w.tensor, name=graph.free(_name([part.inputs[1].name for part in parts])), dims=joined(w.tensor.dims)
    )
    whole, firsts = Use(tensor, joined(w.loops)), tuple(dict.fromkeys(piece[0] for piece in pieces))
    splits = [split for split in parts[0].splits if split.loops[0] in others - kept]
    op = replace(
        parts[0],
        name=graph.free(_name([part.name for part in parts])),
        loops=tuple(dict.fromkeys((*(loop for loop in parts[0].loops if loop in others), name, *chain(*pieces)))),
        inputs=(x, whole),
        outputs=tuple(outputs),
        saves=tuple(whole if use.name == w.name else use for use in parts[0].saves),
        splits=tuple(splits if kept & {*firsts} else [*splits, Split((name, *firsts))]),
        path=_joined_path([part.path for part in parts]),
        parts=tuple(parts),
    )
    return op, {name: sum(prod(sizes[loop] for loop in piece) for piece in pieces)}


def _lead(some: Sequence[Sequence[str]]) -> list[str]:
    """Return what all sequences begin with."""
    return [first for first, *_ in takewhile(lambda each: len({*each}) == 1, zip(*some, strict=False))]


def _name(names: Sequence[str]) -> str:
    """Return one name for several: layers.0.gate+up, what they begin with once."""
    parts = [name.split(".") for name in names]
    lead = _lead([some[:-1] for some in parts])
    return ".".join((*lead, "+".join(".".join(some[len(lead) :]) for some in parts)))


def _joined_path(paths: Sequence[str]) -> str:
    """Return one path for several: layers.0.gate+up.weight, what they begin and end with once; "" if one is ""."""
    if not all(paths) or len({*paths}) == 1:
        return paths[0] if all(paths) else ""
    parts = [path.split(".") for path in paths]
    lead = _lead([some[:-1] for some in parts])
    rest = [some[len(lead) :] for some in parts]
    trail = _lead([some[:0:-1] for some in rest])
    return ".".join((*lead, "+".join(some[-1 - len(trail)] for some in rest), *trail[::-1]))


def _path(graph: Graph, parts: Sequence[Operator], products: Sequence[Operator]) -> str:
    """Return the path of the weight that stands for those of two products. parts: of both, in order of their names."""
    known = {one.tensor.name: one.path for one in graph.program.parameters}
    paths = dict[str, str]()
    for op in products:
        path, own = known[op.inputs[1].name], op.parts or (op,)
        *_, among = [""] + [one for one in path.split(".") if one.count("+") == len(own) - 1]
        each = among.split("+") if op.parts else [among]
        for part, mine in zip(own, each, strict=False):
            paths[part.name] = ".".join(mine if one == among else one for one in path.split("."))
    return _joined_path([paths.get(part.name, "") for part in parts])


def _kernel(op: Operator) -> tuple[Hashable, ...]:
    """Return what a product has once, whatever it computes: elements of its results, and how its kernels are priced."""
    element = replace(op.outputs[0].tensor, name="", dims=())
    return element, op.gradients, op.traffic, op.linear, op.sums, op.launches, op.low_precision


def associate(graph: Graph) -> Iterator[Substitution]:
    """Yield (a·b)·c -> a·(b·c) and (a·c)·b for a product that one other product alone reads."""
    for index, op in enumerate(graph.program.operators):
        for slot in (0, 1) if graph.einsum(op) else ():
            first = graph.only(op.inputs[slot])
            if first is None or not graph.einsum(inner := graph.program.operators[first]):
                continue
            sizes, middle, c = dict(graph.program.sizes), op.inputs[slot], op.inputs[1 - slot]
            names = unified(inner, inner.outputs[0], middle.loops, op.loops, sizes)
            a, b = (use.renamed(*names.items()) for use in inner.inputs)
            never = {names[loop] for loop in held(inner)} | held(op)
            for near, far in ((b, a), (a, b)):
                outside = {*far.loops, *op.outputs[0].loops}
                pair = (near, c) if slot == 0 else (c, near)
                kept = [loop for loop in loops_of(pair) if loop in outside]
                summed, summed_last = {*loops_of(pair)} - outside, {*far.loops, *kept} - {*op.outputs[0].loops}
                if not (summed and summed_last and summed <= {*near.loops} & {*c.loops}):
                    continue
                part = graph.made(op, "·", *pair, kept)
                before = build("*", part.name, pair, [part], whole=never, path=op.path)
                both = (far, part) if far is a else (part, far)
                after = build("*", op.name, both, op.outputs, whole=never, path=op.path)
                words = f"{near.name} times {c.name} first, then times {far.name}"
                yield Substitution((first, index), (before, after), words, sizes)


def factor(graph: Graph) -> Iterator[Substitution]:
    """Yield s·a + s·b -> s·(a + b), where the addition alone reads the products."""
    operators = graph.program.operators
    for index, op in enumerate(operators):
        if not _sum_of_two(op):
            continue
        first, second = map(graph.only, op.inputs)
        if first is None or second is None or not (graph.einsum(operators[first]) and graph.einsum(operators[second])):
            continue
        one, other, sizes = operators[first], operators[second], dict(graph.program.sizes)
        names = unified(one, one.outputs[0], op.inputs[0].loops, op.loops, sizes)
        for slot, mine in enumerate(one.inputs):
            for its in (use for use in other.inputs if use.name == mine.name):
                shared, a = (use.renamed(*names.items()) for use in (mine, one.inputs[1 - slot]))
                b = other.inputs[1 - other.inputs.index(its)]
                like = dict(zip(other.outputs[0].loops, op.inputs[1].loops, strict=True))
                same = [like.setdefault(loop, to) == to for loop, to in zip(its.loops, shared.loops, strict=True)]
                if not all(same) or {*other.loops} - {*like} or len({*like.values()}) < len(like) or a.name == b.name:
                    continue
                b = b.renamed(*like.items())
                if {*a.loops} != {*b.loops}:
                    continue
                never = {names[loop] for loop in held(one)} | {like[loop] for loop in held(other)}
                total = graph.made(op, "+", a, b, a.loops)
                both = (shared, total) if slot == 0 else (total, shared)
                before = build("add", total.name, (a, b), [total], whole=never, path=op.path)
                after = build("*", op.name, both, op.outputs, whole=never, path=op.path)
                words = f"{a.name} and {b.name} added first, then times {shared.name}"
                yield Substitution((first, second, index), (before, after), words, sizes)


def distribute(graph: Graph) -> Iterator[Substitution]:
    """Yield s·(a + b) -> s·a + s·b, where the product alone reads the sum."""
    for index, op in enumerate(graph.program.operators):
        for slot in (0, 1) if graph.einsum(op) else ():
            first = graph.only(op.inputs[slot])
            if first is None or not _sum_of_two(addition := graph.program.operators[first]):
                continue
            sizes, shared, out = dict(graph.program.sizes), op.inputs[1 - slot], op.outputs[0]
            names = unified(addition, addition.outputs[0], op.inputs[slot].loops, op.loops, sizes)
            products = list[Operator]()
            for use in (part.renamed(*names.items()) for part in addition.inputs):
                both = (use, shared) if slot == 0 else (shared, use)
                part = graph.made(op, "·", *both, out.tensor.dims)
                part = Use(replace(part.tensor, element=out.tensor.element), out.loops)
                products.append(build("*", part.name, both, [part], whole=held(op), path=op.path))
            parts = [Use(made.outputs[0].tensor, out.loops) for made in products]
            after = build("add", op.name, parts, [out], whole=held(op), path=op.path)
            words = f"{shared.name} times {' and '.join(use.name for use in addition.inputs)} each, then added"
            yield Substitution((first, index), (*products, after), words, sizes)


def _sum_of_two(op: Operator) -> bool:
    """Return whether an operator adds two tensors of its result's loops."""
    return op.function == "add" and len({*op.inputs}) == 2 and all({*use.loops} == {*op.loops} for use in op.inputs)


def fuse(graph: Graph) -> Iterator[Substitution]:
    """Yield an elementwise operator in the kernel of the elementwise one that alone reads its result.

    The tensor between them is neither written nor read. If the backward needs it, it is recomputed from its inputs, or
    saved where that takes fewer bytes.
    """
    for index, op in enumerate(graph.program.operators):
        for use in dict.fromkeys(op.inputs) if _elementwise(op) else ():
            first = graph.only(use)
            if first is None or not _elementwise(before := graph.program.operators[first]):
                continue
            own = [other for other in op.inputs if other.name == use.name]
            if len({*own}) > 1 or {*use.loops} != {*op.outputs[0].loops}:
                continue
            names = unified(before, before.outputs[0], use.loops, (), dict(graph.program.sizes))
            given = [other.renamed(*names.items()) for other in before.inputs]
            inputs = dict.fromkeys(
                one for other in op.inputs for one in (given if other is use else (other,)) if one.name != use.name
            )
            saves = {one.name: one for one in (*(kept.renamed(*names.items()) for kept in before.saves), *op.saves)}
            if saves.pop(use.name, None) is not None:
                missing, sizes = [one for one in given if one.name not in saves], graph.program.sizes
                if sum(one.tensor.bytes(sizes) for one in missing) <= use.tensor.bytes(sizes):
                    saves |= {one.name: one for one in missing}
                else:
                    saves[use.name] = Use(replace(use.tensor, gradient=False), use.loops)
            able = {names[loop] for loop in before.loops} - {names[loop] for loop in held(before)}
            fused = replace(
                op, inputs=tuple(inputs), saves=tuple(saves.values()) if before.backward or op.backward else (),
                splits=tuple(one for one in op.splits if {*one.loops} <= able), linear=op.linear and before.linear,
                gradients=Gradients.ALL if before.backward or op.backward else Gradients.NONE, traffic=ALL,
                function="fused", parts=(*(before.parts or (before,)), *(op.parts or (op,))),
            )  # fmt: skip
            yield Substitution((first, index), (fused,), f"{before.name} and {op.name} in one kernel")


def _elementwise(op: Operator) -> bool:
    """Return whether each element of an operator's one result needs one element of each input."""
    simple = op.function in POINTWISE and op.work is Work.MEMORY and len(op.outputs) == 1 and not op.contracted
    return simple and {*op.loops} == {*op.outputs[0].loops}


RULES: Mapping[str, Callable[[Graph], Iterator[Substitution]]] = {
    rule.__name__: rule for rule in (merge, associate, factor, distribute, fuse)
}
