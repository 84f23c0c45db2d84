"""Operators that statements of the notation say, for all or for each number of dims: products, softmax, look-ups."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.graph.program.build import MASKED
from symconfig.graph.program.torch_source.call import STATISTIC, Answer, Call, Result, Rule, labels_of, says
from symconfig.graph.program.torch_source.recorder import Labels, Value

BIAS, ADDED = "result[d...] = bias(product, bias)", "result[d...] = bias(product, self)"
EXPERTS: Mapping[str, Rule] = {
    "dispatch": says("result[expert,slot,d] = dispatch(tokens[token,d], routes[token,choice], slots=slot)"),
    "combine": says(
        "result[token,d] = combine(done[expert,slot,d], weights[token,choice], routes[token,choice], slots=slot)"
    ),
}


def _matmul(call: Call) -> Answer:
    x: Value = call["self"]
    y: Value = call["other"]
    batch = [f"b{n}" for n in range(max(x.rank, y.rank) - 2)]
    xs = [*batch[len(batch) + 2 - x.rank :], "row", "in"] if x.rank > 1 else ["in"]
    ys = [*batch[len(batch) + 2 - y.rank :], "in", "out"] if y.rank > 1 else ["in"]
    out = [*batch, *(["row"] if x.rank > 1 else []), *(["out"] if y.rank > 1 else [])]
    return call.emit("*", [(x, xs), (y, ys)], out)


def _einsum(call: Call) -> Answer:
    terms, _, out = call["equation"].replace(" ", "").partition("->")
    inputs = terms.split(",")
    if "." in terms or len(inputs) != 2 or any(len(set(term)) < len(term) for term in inputs):
        raise NotImplementedError("einsum of other than two operands, with ellipsis or a repeated letter")
    if not out and "->" not in call["equation"]:
        letters = "".join(inputs)
        out = "".join(sorted(letter for letter in letters if letters.count(letter) == 1))
    return call.emit("*", [(x, list(term)) for x, term in zip(call["tensors"], inputs, strict=True)], list(out))


def _attention(call: Call) -> Answer:
    """Lower q[…, queries, d], k[…, keys, d], v[…, keys, e]; fewer key/value heads are shared by groups of query heads.

    A mask is not looked into: without `is_causal` every query attends to every key, as kernels compute it.
    """
    q: Value = call["query"]
    k, v, mask = call["key"], call["value"], call.args.get("attn_mask")
    shape, out, heads = call.shape(q), call.result, call.size(k, -3) if k.rank > 2 else 1
    queries, keys = shape[-2], call.size(k, -2)
    theirs = mine = [f"b{n}" for n in range(q.rank - 2)]
    result = out
    if call.args.get("enable_gqa") and shape[-3] != heads:
        groups, mine = [heads, shape[-3] // heads], [*theirs, "group"]
        q = call.viewed(q, [*shape[:-3], *groups, *shape[-2:]])
        result = Result((*out.shape[:-3], *groups, *out.shape[-2:]), out.element_bytes, out.floating)
        if mask is not None:
            wide = call.shape(mask)
            parts = groups if len(wide) > 2 and wide[-3] > 1 else [1, 1]
            mask = call.viewed(mask, [*wide[:-3], *parts, *wide[-2:]])
    inputs: list[tuple[Value, Labels]] = [(q, [*mine, "query", "d"]), (k, [*theirs, "key", "d"])]
    inputs += [(v, [*theirs, "key", "e"])]
    inputs += [(mask, [*mine, "query", "key"][-mask.rank :])] if mask is not None else []
    y = call.emit(
        "attention",
        inputs,
        [*mine, "query", "e"],
        result=result,
        residues=[([*mine, "query"], result.shape[:-1], STATISTIC)],
        over=["key"],
        whole=["d", "e"],
        attended=(keys + 1) / 2 if call.args.get("is_causal") and queries == keys else float(keys),
        channels=float(shape[-1] + call.size(v, -1)),
    )
    return call.viewed(y, out.shape)


def _rows(call: Call, table: Value, ids: Value, dim: int) -> Value:
    """Look table[…, rows, …] up at ids[…] -> […, ids…, …]."""
    rows, labels = [f"row{n}" for n in range(ids.rank)], labels_of(table.rank)
    return call.emit("gather", [(table, labels), (ids, rows)], [*labels[:dim], *rows, *labels[dim + 1 :]])


def _index(call: Call) -> Answer:
    """Lower an index: one into one dim; several at once pick single elements, from dims that are whole."""
    table: Value = call["self"]
    given = {dim: index for dim, index in enumerate(call["indices"]) if index is not None}
    first, labels = min(given), labels_of(table.rank)
    if len(given) == 1:
        return _rows(call, table, given[first], first)
    if sorted(given) != list(range(first, first + len(given))):
        raise NotImplementedError("indices into dims that are not side by side")
    rows = [f"row{n}" for n in range(max(index.rank for index in given.values()))]
    inputs = [(index, rows[len(rows) - index.rank :]) for index in given.values() if not index.scalar]
    out = [*labels[:first], *rows, *labels[first + len(given) :]]
    return call.emit(MASKED, [(table, labels), *inputs], out, over=[labels[dim] for dim in given])


def _along(call: Call) -> Answer:
    """Read or write elements by an index of the same rank, along a dim that is whole."""
    x: Value = call["self"]
    dim, labels = call["dim"] % x.rank, labels_of(x.rank)
    inputs: list[tuple[Value, Labels]] = []
    whole = {labels[dim]}
    for number, value in enumerate(value for value in call.tensors if value.rank == x.rank):
        sizes = enumerate(zip(call.shape(value), call.result.shape, strict=True))
        own = [labels[n] if a == b and n != dim else f"own{number}.{n}" for n, (a, b) in sizes]
        whole |= {label for label in own if label.startswith("own")}
        inputs.append((value, own))
    return call.emit(MASKED, inputs, labels, over=sorted(whole))


def _topk(call: Call) -> Answer:
    """Return weights and indices of the chosen."""
    labels = labels_of(call["self"].rank)
    over = labels[call["dim"]]
    out = [label if label != over else "chosen" for label in labels]
    outputs = [(out, result) for result in call.results]
    return call.emit_all("route", [(call["self"], labels)], outputs, over=[over])


RULES: Mapping[str, Rule] = {
    "linear": says("product[rows...,out] = input[rows...,in] * weight[out,in]", BIAS),
    "mm": says("result[row,out] = self[row,in] * mat2[in,out]"),
    "addmm": says("product[row,out] = mat1[row,in] * mat2[in,out]", ADDED),
    "bmm": says("result[b,row,out] = self[b,row,in] * mat2[b,in,out]"),
    "baddbmm": says("product[b,row,out] = batch1[b,row,in] * batch2[b,in,out]", ADDED),
    "mv": says("result[row] = self[row,in] * vec[in]"),
    "dot": says("result[] = self[in] * tensor[in]"),
    "matmul": _matmul,
    "einsum": _einsum,
    "softmax _softmax log_softmax _log_softmax": says("result[d...] = softmax(self[d...], over=dim)"),
    "scaled_dot_product_attention": _attention,
    "embedding": says("result[rows...,channels...] = gather(weight[row,channels...], indices[rows...])"),
    "index": _index,
    "index_select": lambda call: _rows(call, call["self"], call["index"], call["dim"] % call["self"].rank),
    "gather scatter scatter_add index_add": _along,
    "topk sort": _topk,
}
