"""Sums, means and maxima, softmax, norms, and losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from symconfig.graph.operator import Operator
from symconfig.graph.program import build
from symconfig.graph.program.functions import LINEAR, MASKED, NORMALISE, OF_INPUTS, OF_OUTPUT, Function
from symconfig.graph.program.torch_source.call import Answer, Call, Result, Rule, each, made
from symconfig.graph.program.torch_source.recorder import Labels, Nest, Value
from symconfig.graph.program.torch_source.rules.elementwise import pointwise

LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "binary_cross_entropy_with_logits")
STATISTIC = 4.0  # bytes of a mean, a deviation, the logarithm of a sum: kept in fp32 whatever the data


def reduced(call: Call, x: Value, over: Sequence[int], function: Function, keep: bool = False) -> Value:
    labels = [f"d{n}" for n in range(x.rank)]
    left = [label if n not in over else None for n, label in enumerate(labels)]

    out = left if keep else [label for n, label in enumerate(left) if n not in over]
    return call.emit(made(build.reduction, function), [(x, labels)], out)


def _reduction(function: Function, call: Call) -> Answer:
    x: Value = call["self"]
    dims = call.args.get("dim")
    given = [dims] if isinstance(dims, int) else (dims or range(x.rank))
    first = reduced(call, x, [dim % x.rank for dim in given], function, bool(call.args.get("keepdim")))
    return [first, *(None for _ in call.results[1:])]


def _softmax(call: Call) -> Answer:
    x: Value = call["self"]
    labels = [f"d{n}" for n in range(x.rank)]
    return call.emit(made(build.softmax, over=[labels[call["dim"]]]), [(x, labels)], labels)


def _layer_norm(sums: int, call: Call) -> Answer:
    x: Value = call["input"]
    labels = [f"d{n}" for n in range(x.rank)]
    inner = labels[-len(call["normalized_shape"]) :]
    rows = labels[: -len(inner)]
    given = [call["weight"], call.args.get("bias")]
    weights = [(weight, inner) for weight in given if weight is not None]

    def make(nest: Nest) -> Operator:
        x, *weights = nest.inputs
        over, stats = nest.loops_of(inner), nest.residues[0]
        return build.norm(nest.name, x, weights, nest.output, over, stats, sums=sums, path=nest.path)

    residue = (rows, call.shape(x)[: len(rows)], STATISTIC * sums)
    return [call.emit(make, [(x, labels), *weights], labels, residues=[residue]), None, None]


def _batch_norm(call: Call) -> Answer:
    """Norm over all dims but the second, with statistics of the batch, or of past ones where it does not train."""
    x: Value = call["input"]
    labels = [f"d{n}" for n in range(x.rank)]
    trains = call.args.get("training", call.args.get("train", True))
    past = [value for value in (call.args.get("running_mean"), call.args.get("running_var")) if value is not None]
    return [_normalised(call, x, labels, ["d1"], [] if trains else past, ["d1"]), *(None for _ in call.results[1:])]


def _group_norm(call: Call) -> Answer:
    groups = call.args["num_groups"] if "num_groups" in call.args else call["group"]
    x: Value = call["input"]
    shape = call.shape(x)
    wide = [shape[0], groups, shape[1] // groups, *shape[2:]]
    labels = ["n", "group", "c", *(f"d{n}" for n in range(2, x.rank))]
    y = _normalised(call, call.viewed(x, wide), labels, ["n", "group"], [], ["group", "c"])
    return [call.viewed(y, shape), None, None]


def _normalised(call: Call, x: Value, labels: Labels, left: Labels, past: Sequence[Value], channels: Labels) -> Value:
    """Make statistics over the dims that are not `left`, then each element by itself."""
    shape = call.shape(x)
    size = dict(zip(labels, shape, strict=True))
    stats = [(value, left) for value in past]
    if not stats:
        result = Result(tuple(size[label] for label in left), 2 * STATISTIC, True)
        summed = call.emit(made(build.statistics), [(x, labels)], left, part="statistics", result=result)
        stats = [(summed, left)]
    given = [value for value in (call["weight"], call["bias"]) if value is not None]
    weights = [(call.viewed(value, [size[label] for label in channels]), channels) for value in given]
    result = Result(tuple(shape), call.result.element_bytes, True)
    return call.emit(each(NORMALISE), [(x, labels), *stats, *weights], labels, result=result)


def _cross_entropy(call: Call) -> Answer:
    """Make losses of each row, and their mean."""
    logits: Value = call["self"]
    at = min(1, logits.rank - 1)
    labels = [f"d{n}" for n in range(logits.rank)]
    rows = [label for n, label in enumerate(labels) if n != at]
    shape = [size for n, size in enumerate(call.shape(logits)) if n != at]
    soft = call["target"].rank == logits.rank
    width, make = call.result.element_bytes, made(build.cross_entropy, over=[labels[at]])
    inputs: list[tuple[Value, Labels]] = [(logits, labels), (call["target"], labels if soft else rows)]
    losses = call.emit(make, inputs, rows, part="rows", result=Result(tuple(shape), width, True))
    return _averaged(call, losses)


def _loss(call: Call) -> Answer:
    """Apply a function to each element, and take their mean."""
    values = call.tensors
    shape = tuple(call.shape(max(values, key=lambda value: value.rank)))
    result = Result(shape, call.result.element_bytes, True)
    return _averaged(call, pointwise(call, OF_INPUTS, values, part="each", result=result))


def _chosen(call: Call) -> Answer:
    """Choose, of logarithms of probabilities, those of the right classes: all classes of a row are in one place."""
    x, target = call["self"], call["target"]
    at = min(1, x.rank - 1)
    labels = [f"d{n}" for n in range(x.rank)]
    rows = [label for n, label in enumerate(labels) if n != at]
    shape = [size for n, size in enumerate(call.shape(x)) if n != at]

    result, make = Result(tuple(shape), call.result.element_bytes, True), each(MASKED, [labels[at]])
    return _averaged(call, call.emit(make, [(x, labels), (target, rows)], rows, part="rows", result=result))


def _averaged(call: Call, losses: Value) -> Value:
    if not call.args.get("reduction", 1) or not any(losses.dims):
        return call.viewed(losses, call.result.shape)
    return reduced(call, losses, range(losses.rank), LINEAR)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("aten.sum", "aten.mean"), partial(_reduction, LINEAR)),
    **dict.fromkeys(("aten.amax", "aten.amin", "aten.max", "aten.min"), partial(_reduction, OF_INPUTS)),
    **dict.fromkeys(
        ("aten.var", "aten.std", "aten.var_mean", "aten.prod", "aten.norm"), partial(_reduction, OF_INPUTS)
    ),
    **dict.fromkeys(("aten.linalg_vector_norm",), partial(_reduction, OF_INPUTS)),
    **dict.fromkeys(("aten.logsumexp",), partial(_reduction, OF_OUTPUT)),
    **dict.fromkeys(("aten.any", "aten.all", "aten.argmax", "aten.argmin"), partial(_reduction, OF_INPUTS)),
    **dict.fromkeys(("aten.softmax", "aten._softmax", "aten.log_softmax", "aten._log_softmax"), _softmax),
    **dict.fromkeys(("aten.layer_norm", "aten.native_layer_norm"), partial(_layer_norm, 2)),
    **dict.fromkeys(("aten.rms_norm", "aten._fused_rms_norm"), partial(_layer_norm, 1)),
    **dict.fromkeys(
        ("aten.batch_norm", "aten.native_batch_norm", "aten._native_batch_norm_legit_functional"), _batch_norm
    ),
    **dict.fromkeys(("aten.group_norm", "aten.native_group_norm"), _group_norm),
    "aten.cross_entropy_loss": _cross_entropy,
    **dict.fromkeys(("aten.nll_loss", "aten.nll_loss_nd"), _chosen),
    **dict.fromkeys((f"aten.{name}" for name in LOSSES), _loss),
}
