"""Operators that compute each element by itself: a table, by what their backward reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from symconfig.graph.program.build import FUNCTIONS, LINEAR, OF_INPUTS, OF_OUTPUT, Function, nothing
from symconfig.graph.program.torch_source.call import Answer, Call, Result, Rule, labels_of
from symconfig.graph.program.torch_source.recorder import Value

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
    """Lower an operator at each point. Inputs are repeated along the dims that they lack, as PyTorch broadcasts."""
    labels = labels_of(len((result or call.result).shape))
    inputs = [(value, labels[len(labels) - value.rank :]) for value in values if not value.scalar]
    return call.emit(function, inputs, labels, part=part, result=result)


def _plain(function: Function | str, call: Call) -> Answer:
    name = call.operator.removeprefix("aten.")
    values = [value for value in call.tensors if not value.scalar]
    if name in WITH_NUMBER and len(values) == 1:
        divided = name == "div" and isinstance(call["self"], Value) and call["self"].scalar
        function = "reciprocal" if divided else WITH_NUMBER[name]
    return pointwise(call, function, values)


def _cast(call: Call) -> Answer:
    """Lower a cast: nothing happens where the type stays."""
    given: Value = call["self"]
    if given.made.element_bytes == call.result.element_bytes and (given.gradient or not call.result.floating):
        return given
    return pointwise(call, LINEAR, [given])


def _glu(call: Call) -> Answer:
    """Multiply one half of a dim with the sigmoid of the other."""
    x: Value = call["self"]
    dim, labels = call["dim"] % x.rank, labels_of(x.rank)
    halves = call.factored(x, dim, 2)
    return call.emit(OF_INPUTS, [(halves, [*labels[:dim], "half", *labels[dim:]])], labels, over=["half"])


def _dropout(call: Call) -> Answer:
    x: Value = call["input"]
    if not call["train"] or not call["p"]:
        return [x, None]
    labels = labels_of(x.rank)
    return [call.emit("dropout", [(x, labels)], labels, residues=[(labels, call.result.shape, 1.0)]), None]


def _along(call: Call) -> Answer:
    """Make each element from all along some dims (cumulative sums, differences): those are whole."""
    labels = labels_of(call["self"].rank)
    return call.emit(OF_INPUTS, [(call["self"], labels)], labels, over=call.named(labels, ["dim", "dims"]))


# Of another tensor's shape and type only: a constant.
FILLED = frozenset(
    f"aten.{name}"
    for kind in ("zeros", "ones", "full", "empty", "rand", "randn")
    for name in (f"{kind}_like", f"new_{kind}")
)

RULES: Mapping[str, Rule] = {
    **{names: partial(_plain, function) for names, function in KEPT.items()},
    "_to_copy to type_as": _cast,
    "native_dropout dropout": _dropout,
    "glu": _glu,
    "cumsum cumprod diff flip": _along,
}
