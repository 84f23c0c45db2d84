"""Sums, means and maxima, norms, and losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from symconfig.graph.program.build import LINEAR, LOG_SUM, MASKED, MAXIMUM, NORMALISE, OF_INPUTS, STATISTICS, Function
from symconfig.graph.program.torch_source.call import STATISTIC, Answer, Call, Rule, labels_of
from symconfig.graph.program.torch_source.recorder import Labels, Value
from symconfig.graph.program.torch_source.rules.pointwise import pointwise


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


def _layer_norm(function: str, sums: int, call: Call) -> Answer:
    x: Value = call["input"]
    labels = labels_of(x.rank)
    rows, inner = labels[: -len(call["normalized_shape"])], labels[-len(call["normalized_shape"]) :]
    weights = [(weight, inner) for weight in (call["weight"], call.args.get("bias")) if weight is not None]
    residue = (rows, call.shape(x)[: len(rows)], STATISTIC * sums)
    return [call.emit(function, [(x, labels), *weights], labels, residues=[residue], over=inner), None, None]


def _batch_norm(call: Call) -> Answer:
    """Norm over all dims but the second, with statistics of the batch, or of past ones where it does not train."""
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
    """Make statistics over the dims that are not `left`, then each element by itself."""
    size = dict(zip(labels, call.shape(x), strict=True))
    stats = [(value, left) for value in past]
    if not stats:
        result = call.of([size[label] for label in left], 2 * STATISTIC)
        stats = [(call.emit(STATISTICS, [(x, labels)], left, part="statistics", result=result), left)]
    given = [value for value in (call["weight"], call["bias"]) if value is not None]
    weights = [(call.viewed(value, [size[label] for label in channels]), channels) for value in given]
    return call.emit(NORMALISE, [(x, labels), *stats, *weights], labels, result=call.of(call.shape(x)))


def _of_rows(function: Function | str, call: Call) -> Answer:
    """Make losses of each row, whose classes are in one place or reduced inside, and their mean."""
    x, target = call["self"], call["target"]
    at, labels, shape = min(1, x.rank - 1), labels_of(x.rank), call.shape(x)
    rows = labels[:at] + labels[at + 1 :]
    inputs: list[tuple[Value, Labels]] = [(x, labels), (target, labels if target.rank == x.rank else rows)]
    result = call.of(shape[:at] + shape[at + 1 :])
    return _averaged(call, call.emit(function, inputs, rows, part="rows", result=result, over=[labels[at]]))


def _loss(call: Call) -> Answer:
    """Apply a function to each element, and take their mean."""
    result = call.of(call.shape(max(call.tensors, key=lambda value: value.rank)))
    return _averaged(call, pointwise(call, OF_INPUTS, call.tensors, part="each", result=result))


def _averaged(call: Call, losses: Value) -> Value:
    if not call.args.get("reduction", 1) or not any(losses.dims):
        return call.viewed(losses, call.result.shape)
    return reduced(call, losses, range(losses.rank), LINEAR)


RULES: Mapping[str, Rule] = {
    "sum mean": partial(_reduction, LINEAR),
    "amax amin max min var std var_mean prod norm linalg_vector_norm": partial(_reduction, MAXIMUM),
    "any all argmax argmin": partial(_reduction, MAXIMUM),
    "logsumexp": partial(_reduction, LOG_SUM),
    "layer_norm native_layer_norm": partial(_layer_norm, "layernorm", 2),
    "rms_norm _fused_rms_norm": partial(_layer_norm, "norm", 1),
    "batch_norm native_batch_norm _native_batch_norm_legit_functional": _batch_norm,
    "group_norm native_group_norm": _group_norm,
    "cross_entropy_loss": partial(_of_rows, "cross_entropy"),
    "nll_loss nll_loss_nd": partial(_of_rows, MASKED),  # of logarithms of probabilities
    "mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy_with_logits": _loss,
}
