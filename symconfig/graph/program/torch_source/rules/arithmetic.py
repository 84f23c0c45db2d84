"""Operators at each element by itself, products, softmax and look-ups, sums, means and maxima, norms and losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from symconfig.graph.program.build import (
    FP32_BYTES,
    FUNCTIONS,
    LINEAR,
    LOG_SUM,
    MASKED,
    MAXIMUM,
    NORMALISE,
    OF_INPUTS,
    OF_OUTPUT,
    STATISTICS,
    Function,
    causal_keys,
    nothing,
)  # fmt: skip
from symconfig.graph.program.torch_source.recorder import (
    Answer,
    Call,
    Labels,
    Result,
    Rule,
    Value,
    labels_of,
    says,
)

# By the operator's name without its overload. What each keeps for its backward: `symconfig/graph/program/build.py`.
KEPT: Mapping[str, Function] = {
    "add sub rsub neg tril triu": LINEAR,
    "mul": FUNCTIONS["mul"],
    "div": FUNCTIONS["div"],
    "relu tanh sigmoid exp sqrt rsqrt reciprocal": OF_OUTPUT,
    "gelu silu elu softplus erf log sin cos abs maximum minimum pow square log1p expm1 atan asin": OF_INPUTS,
    "leaky_relu hardtanh hardswish hardsigmoid mish log_sigmoid softsign prelu": OF_INPUTS,
    "clamp clamp_min clamp_max": OF_INPUTS,
    "where masked_fill": FUNCTIONS["where"],
    "eq ne lt le gt ge isnan isinf logical_not logical_and logical_or __and__ __or__": Function(nothing),
    "bitwise_not bitwise_and bitwise_or sign floor ceil round floor_divide remainder": Function(nothing),
}
# With a number in place of the second tensor they are another function.
WITH_NUMBER = {"add": "shift", "sub": "shift", "rsub": "shift", "mul": "scale", "div": "scale"}


def pointwise(
    call: Call, function: Function | str, values: Sequence[Value], *, part: str = "", result: Result | None = None
) -> Value:
    """Record an element-wise operator and return its result. Inputs are broadcast as in PyTorch; scalars without a
    gradient are left out.
    """
    labels = labels_of(len((result or call.result).shape))
    inputs = [(value, labels[len(labels) - value.rank :]) for value in values if not value.scalar]
    return call.emit(function, inputs, labels, part=part, result=result)


def _elementwise(function: Function | str, call: Call) -> Answer:
    """Record an element-wise operator of all tensor arguments and return its result.

    With a number or a scalar without gradient in place of one of two tensors, add, sub and rsub become `shift`, mul and
    div `scale`, and a division of it by the tensor `reciprocal`.
    """
    name = call.operator.removeprefix("aten.")
    values = [value for value in call.tensors if not value.scalar]
    if name in WITH_NUMBER and len(values) == 1:
        divided = name == "div" and isinstance(call["self"], Value) and call["self"].scalar
        function = "reciprocal" if divided else WITH_NUMBER[name]
    return pointwise(call, function, values)


def _cast(call: Call) -> Answer:
    """Record a cast; return the input itself if the element size stays the same and either the input has a gradient or
    the result is not floating.
    """
    given: Value = call["self"]
    if given.made.element_bytes == call.result.element_bytes and (given.gradient or not call.result.floating):
        return given
    return pointwise(call, LINEAR, [given])


def _dropout(call: Call) -> Answer:
    x: Value = call["input"]
    if not call["train"] or not call["p"]:
        return [x, None]
    labels = labels_of(x.rank)
    return [call.emit("dropout", [(x, labels)], labels), None]


def reduced(call: Call, x: Value, over: Sequence[int], function: Function, *, keep: bool = False) -> Value:
    labels = labels_of(x.rank)
    left = [label if n not in over else None for n, label in enumerate(labels)]
    return call.emit(function, [(x, labels)], left if keep else [label for label in left if label])


def _reduction(function: Function, call: Call) -> Answer:
    x: Value = call["self"]
    dims = call.args.get("dim")
    given = [dims] if isinstance(dims, int) else (dims or range(x.rank))
    first = reduced(call, x, [dim % x.rank for dim in given], function, keep=bool(call.args.get("keepdim")))
    return [first, *(None for _ in call.results[1:])]


def _layer_norm(function: str, call: Call) -> Answer:
    """Record a norm over the last dims, `normalized_shape`, and return [it, None, None]. Weight and bias are left out
    where they are None.
    """
    x: Value = call["input"]
    labels = labels_of(x.rank)
    inner = labels[-len(call["normalized_shape"]) :]
    weights = [(weight, inner) for weight in (call["weight"], call.args.get("bias")) if weight is not None]
    return [call.emit(function, [(x, labels), *weights], labels, over=inner), None, None]


def _batch_norm(call: Call) -> Answer:
    """Record a norm over all dims but the second and return [it, None, …] for the call's results.

    Statistics are of the batch, an operator of its own; the running ones, if there are any, when not training.
    """
    x: Value = call["input"]
    trains = call.args.get("training", call.args.get("train", True))
    past = [value for value in (call.args.get("running_mean"), call.args.get("running_var")) if value is not None]
    normed = _normalised(call, x, labels_of(x.rank), ["d1"], [] if trains else past, ["d1"])
    return [normed, *(None for _ in call.results[1:])]


def _group_norm(call: Call) -> Answer:
    groups = call.args["num_groups"] if "num_groups" in call.args else call["group"]
    x: Value = call["input"]
    labels = ["n", "group", "c", *labels_of(x.rank)[2:]]
    y = _normalised(call, call.factored(x, 1, groups), labels, ["n", "group"], [], ["group", "c"])
    return [call.viewed(y, call.shape(x)), None, None]


def _normalised(call: Call, x: Value, labels: Labels, left: Labels, past: Sequence[Value], channels: Labels) -> Value:
    """Record statistics over the dims that are not in `left`, then the normalisation, and return its result, shaped as
    x.

    past: running statistics, read instead of recording any if not empty. channels: labels of the dims of weight and
    bias (call arguments, None for none), which are viewed in that shape.
    """
    size = dict(zip(labels, call.shape(x), strict=True))
    stats = [(value, left) for value in past]
    if not stats:
        result = call.of([size[label] for label in left], 2 * FP32_BYTES)
        stats = [(call.emit(STATISTICS, [(x, labels)], left, part="statistics", result=result), left)]
    given = [value for value in (call["weight"], call["bias"]) if value is not None]
    weights = [(call.viewed(value, [size[label] for label in channels]), channels) for value in given]
    return call.emit(NORMALISE, [(x, labels), *stats, *weights], labels, result=call.of(call.shape(x)))


def _row_loss(function: Function | str, call: Call) -> Answer:
    """Record a loss for each row, whose classes are in dim 1 (dim 0 of a vector), then its mean or sum unless
    `reduction` is 0 (see `_averaged`).

    The target has a class per row or, with the rank of the logits, a probability per class.
    """
    x, target = call["self"], call["target"]
    at, labels, shape = min(1, x.rank - 1), labels_of(x.rank), call.shape(x)
    rows = labels[:at] + labels[at + 1 :]
    inputs: list[tuple[Value, Labels]] = [(x, labels), (target, labels if target.rank == x.rank else rows)]
    result = call.of(shape[:at] + shape[at + 1 :])
    return _averaged(call, call.emit(function, inputs, rows, part="rows", result=result, over=[labels[at]]))


def _elementwise_loss(call: Call) -> Answer:
    """Record an element-wise loss of all tensors, in the shape of the one with most dims, then its mean or sum unless
    `reduction` is 0 or it is a single number already.
    """
    result = call.of(call.shape(max(call.tensors, key=lambda value: value.rank)))
    return _averaged(call, pointwise(call, OF_INPUTS, call.tensors, part="each", result=result))


def _averaged(call: Call, losses: Value) -> Value:
    if not call.args.get("reduction", 1) or not any(losses.dims):
        return call.viewed(losses, call.result.shape)
    return reduced(call, losses, range(losses.rank), LINEAR)


# Of another tensor's shape and type only: a constant.
FILLED = frozenset(
    f"aten.{name}"
    for kind in ("zeros", "ones", "full", "empty", "rand", "randn")
    for name in (f"{kind}_like", f"new_{kind}")
)

RULES: Mapping[str, Rule] = {
    **{names: partial(_elementwise, function) for names, function in KEPT.items()},
    "_to_copy to type_as": _cast,
    "native_dropout dropout": _dropout,
    "sum mean": partial(_reduction, LINEAR),
    "amax amin max min var std var_mean prod norm linalg_vector_norm": partial(_reduction, MAXIMUM),
    "any all argmax argmin": partial(_reduction, MAXIMUM),
    "logsumexp": partial(_reduction, LOG_SUM),
    "layer_norm native_layer_norm": partial(_layer_norm, "layernorm"),
    "rms_norm _fused_rms_norm": partial(_layer_norm, "norm"),
    "batch_norm native_batch_norm _native_batch_norm_legit_functional": _batch_norm,
    "group_norm native_group_norm": _group_norm,
    "cross_entropy_loss": partial(_row_loss, "cross_entropy"),
    "nll_loss nll_loss_nd": partial(_row_loss, MASKED),  # of logarithms of probabilities
    "mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy_with_logits": _elementwise_loss,
}


BIAS, ADDED = "result[d...] = bias(product, bias)", "result[d...] = bias(product, self)"
EXPERTS: Mapping[str, Rule] = {
    "dispatch": says("result[expert,slot,d] = dispatch(tokens[token,d], routes[token,choice], slots=slot)"),
    "combine": says(
        "result[token,d] = combine(done[expert,slot,d], weights[token,choice], routes[token,choice], slots=slot)"
    ),
}


def _matmul(call: Call) -> Answer:
    """Record a matrix product of tensors of any rank, as torch.matmul, and return it: leading dims are broadcast, and a
    tensor of one dim is a vector, whose dim the result lacks.
    """
    x: Value = call["self"]
    y: Value = call["other"]
    batch = [f"b{n}" for n in range(max(x.rank, y.rank) - 2)]
    xs = [*batch[len(batch) + 2 - x.rank :], "row", "in"] if x.rank > 1 else ["in"]
    ys = [*batch[len(batch) + 2 - y.rank :], "in", "out"] if y.rank > 1 else ["in"]
    out = [*batch, *(["row"] if x.rank > 1 else []), *(["out"] if y.rank > 1 else [])]
    return call.emit("*", [(x, xs), (y, ys)], out)


def _einsum(call: Call) -> Answer:
    """Record a product of two operands and return it. Raise NotImplementedError for other numbers of operands, an
    equation without "->", an ellipsis or a letter twice in one operand.
    """
    terms, arrow, out = call["equation"].replace(" ", "").partition("->")
    inputs = terms.split(",")
    if "." in terms or not arrow or len(inputs) != 2 or any(len(set(term)) < len(term) for term in inputs):
        raise NotImplementedError("einsum of other than two operands, without ->, with ellipsis or a repeated letter")
    return call.emit("*", [(x, list(term)) for x, term in zip(call["tensors"], inputs, strict=True)], list(out))


def _attention(call: Call) -> Answer:
    """Record attention of q[…, queries, d], k[…, keys, d], v[…, keys, e] and return it.

    With `enable_gqa`, fewer key/value heads are shared by equal groups of query heads. Values of a mask are not read:
    it is an operand, and only with `is_causal` and as many queries as keys does a query attend to those before it,
    else to all, as kernels compute it.
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
        over=["key"],
        whole=["d", "e"],
        attended=causal_keys(keys) if call.args.get("is_causal") and queries == keys else float(keys),
    )
    return call.viewed(y, out.shape)


def _look_up(call: Call, table: Value, ids: Value, dim: int) -> Value:
    """Record a look-up of rows of `table` along `dim` at `ids` and return it: the dims of ids in place of that dim."""
    rows, labels = [f"row{n}" for n in range(ids.rank)], labels_of(table.rank)
    return call.emit("gather", [(table, labels), (ids, rows)], [*labels[:dim], *rows, *labels[dim + 1 :]])


def _index(call: Call) -> Answer:
    """Record indexing by tensors: one index is a look-up along one dim; several pick single elements, from dims that
    cannot be split, and are broadcast together (scalars are not read).

    Raise NotImplementedError if several indexed dims are not adjacent.
    """
    table: Value = call["self"]
    given = {dim: index for dim, index in enumerate(call["indices"]) if index is not None}
    first, labels = min(given), labels_of(table.rank)
    if len(given) == 1:
        return _look_up(call, table, given[first], first)
    if sorted(given) != list(range(first, first + len(given))):
        raise NotImplementedError("indices into dims that are not side by side")
    rows = [f"row{n}" for n in range(max(index.rank for index in given.values()))]
    inputs = [(index, rows[len(rows) - index.rank :]) for index in given.values() if not index.scalar]
    out = [*labels[:first], *rows, *labels[first + len(given) :]]
    return call.emit(MASKED, [(table, labels), *inputs], out, over=[labels[dim] for dim in given])


def _topk(call: Call) -> Answer:
    """Record the choice (topk) or sorting along a dim, as the function route, and return [values, indices], whose dim
    has the chosen elements. The dim cannot be split.
    """
    labels = labels_of(call["self"].rank)
    over = labels[call["dim"]]
    out = [label if label != over else "chosen" for label in labels]
    outputs = [(out, result) for result in call.results]
    return call.emit_all("route", [(call["self"], labels)], outputs, over=[over])


STATEMENTS: Mapping[str, Rule] = {
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
    "index_select": lambda call: _look_up(call, call["self"], call["index"], call["dim"] % call["self"].rank),
    "topk sort": _topk,
}
