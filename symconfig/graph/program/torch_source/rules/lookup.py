"""Look-ups by index, and static routing to experts."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.graph.operator import Operator
from symconfig.graph.program import build
from symconfig.graph.program.functions import Function, constants
from symconfig.graph.program.torch_source.call import Answer, Call, Rule, each
from symconfig.graph.program.torch_source.recorder import Labels, Nest, Value


def _rows(call: Call, table: Value, ids: Value, dim: int = 0) -> Value:
    """Look table[…, rows, …] up at ids[…] -> […, ids…, …]."""
    rows = [f"row{n}" for n in range(ids.rank)]
    labels = [f"d{n}" for n in range(table.rank)]

    def make(nest: Nest) -> Operator:
        rows, at = nest.inputs
        return build.gather(nest.name, rows, at, nest.output, nest.sizes, path=nest.path)

    return call.emit(make, [(table, labels), (ids, rows)], [*labels[:dim], *rows, *labels[dim + 1 :]])


def _embedding(call: Call) -> Answer:
    return _rows(call, call["weight"], call["indices"])


def _index(call: Call) -> Answer:
    """Lower an index: one into one dim; several at once pick single elements, from dims that are whole."""
    table: Value = call["self"]
    given = {dim: index for dim, index in enumerate(call["indices"]) if index is not None}
    first = min(given)
    if len(given) == 1:
        return _rows(call, table, given[first], first)
    if sorted(given) != list(range(first, first + len(given))):
        raise NotImplementedError("indices into dims that are not side by side")
    rank = max(index.rank for index in given.values())
    rows = [f"row{n}" for n in range(rank)]
    labels = [f"d{n}" for n in range(table.rank)]
    inputs: list[tuple[Value, Labels]] = [(table, labels)]
    inputs += [(index, rows[rank - index.rank :]) for index in given.values() if not index.scalar]
    out = [*labels[:first], *rows, *labels[first + len(given) :]]
    return _picked(call, inputs, out, [labels[dim] for dim in given])


def _index_select(call: Call) -> Answer:
    return _rows(call, call["self"], call["index"], call["dim"] % call["self"].rank)


def _along(call: Call) -> Answer:
    """Read or write elements by an index of the same rank, along a dim that is whole."""
    x: Value = call["self"]
    dim = call["dim"] % x.rank
    shape = call.result.shape
    inputs: list[tuple[Value, Labels]] = []
    whole = {f"d{dim}"}
    for number, value in enumerate(value for value in call.tensors if value.rank == x.rank):
        same = [call.size(value, n) == size for n, size in enumerate(shape)]
        labels = [f"d{n}" if same[n] and n != dim else f"own{number}.{n}" for n in range(x.rank)]
        whole |= {label for label in labels if label.startswith("own")}
        inputs.append((value, labels))
    return _picked(call, inputs, [f"d{n}" for n in range(x.rank)], sorted(whole))


def _picked(call: Call, inputs: list[tuple[Value, Labels]], out: Labels, whole: Labels) -> Value:
    return call.emit(each(Function(constants, linear=False), whole), inputs, out)


def _topk(call: Call) -> Answer:
    """Return weights and indices of the chosen."""
    x: Value = call["self"]
    labels = [f"d{n}" for n in range(x.rank)]
    over = labels[call["dim"]]
    out: Labels = [label if label != over else "chosen" for label in labels]

    def make(nest: Nest) -> Operator:
        return build.route(nest.name, nest.inputs[0], nest.outputs, nest.loops_of([over])[0], path=nest.path)

    return call.emit_all(make, [(x, labels)], [(out, result) for result in call.results])


def _dispatch(call: Call) -> Answer:
    def make(nest: Nest) -> Operator:
        tokens, routes = nest.inputs
        return build.dispatch(nest.name, tokens, routes, nest.output, nest.loops_of(["slot"])[0], path=nest.path)

    inputs: list[tuple[Value, Labels]] = [(call["tokens"], ["token", "d"]), (call["routes"], ["token", "choice"])]
    return call.emit(make, inputs, ["expert", "slot", "d"])


def _combine(call: Call) -> Answer:
    def make(nest: Nest) -> Operator:
        done, weights, routes = nest.inputs
        return build.combine(nest.name, done, weights, routes, nest.output, nest.loops_of(["slot"])[0], path=nest.path)

    inputs: list[tuple[Value, Labels]] = [
        (call["done"], ["expert", "slot", "d"]),
        (call["weights"], ["token", "choice"]),
        (call["routes"], ["token", "choice"]),
    ]
    return call.emit(make, inputs, ["token", "d"])


RULES: Mapping[str, Rule] = {
    "aten.embedding": _embedding,
    "aten.index": _index,
    "aten.index_select": _index_select,
    **dict.fromkeys(("aten.gather", "aten.scatter", "aten.scatter_add", "aten.index_add"), _along),
    **dict.fromkeys(("aten.topk", "aten.sort"), _topk),
    "symconfig.dispatch": _dispatch,
    "symconfig.combine": _combine,
}
