"""Convolutions and pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

from symconfig.graph.operator import Operator
from symconfig.graph.program import build
from symconfig.graph.program.functions import LINEAR
from symconfig.graph.program.torch_source.call import Answer, Call, Result, Rule, each, made
from symconfig.graph.program.torch_source.recorder import Labels, Nest, Value
from symconfig.graph.program.torch_source.rules.elementwise import pointwise
from symconfig.graph.program.torch_source.rules.products import BIAS
from symconfig.graph.program.torch_source.rules.reductions import reduced


def _convolution(call: Call) -> Answer:
    """Lower x[n, c, …] with w[o, c, …]; in groups, each has channels of its own."""
    if call.args.get("transposed"):
        raise NotImplementedError("a transposed convolution")
    x: Value = call["input"]
    weight: Value = call["weight"]
    groups, shape = call["groups"], call.shape(x)
    kernel = call.shape(weight)[2:]
    space = [f"d{n}" for n in range(len(kernel))]
    inner = [f"k{n}" for n in range(len(kernel))]
    out = list(call.result.shape)
    x = call.viewed(x, [shape[0], groups, shape[1] // groups, *shape[2:]])
    weight = call.viewed(weight, [groups, out[1] // groups, *call.shape(weight)[1:]])
    wide = Result((out[0], groups, out[1] // groups, *out[2:]), call.result.element_bytes, call.result.floating)
    windows = _windows(kernel, call["stride"], call["dilation"])
    x = _padded(call, x, out[2:])

    def make(nest: Nest) -> Operator:
        named = {nest.loops[at][0]: window for at, window in zip(space, windows, strict=True) if at in nest.loops}
        given, kernels = nest.inputs
        op = build.convolution(nest.name, given, kernels, nest.output, named, path=nest.path)
        return _outermost(op, nest, space)

    y = call.emit(
        make,
        [(x, ["n", "group", "in", *space]), (weight, ["group", "out", "in", *inner])],
        ["n", "group", "out", *space],
        part="product" if call["bias"] else "",
        result=wide,
        windows=space,
    )
    y = call.viewed(y, out)
    return y if call["bias"] is None else _biased(call, y, len(kernel))


def _transposed(call: Call) -> Answer:
    """Lower windows side by side: each element makes one, so that the output's rows are (element, place within)."""
    x, weight = call["input"], call["weight"]
    shape, kernel = call.shape(x), call.shape(weight)[2:]
    side = list(call["stride"]) == kernel and not any((*call["padding"], *call["output_padding"]))
    if not side or call["groups"] != 1:
        raise NotImplementedError("windows that overlap, or groups")
    space = [f"d{n}" for n in range(len(kernel))]
    inner = [f"k{n}" for n in range(len(kernel))]
    out = ["n", "out", *(label for pair in zip(space, inner, strict=True) for label in pair)]
    size = [size for pair in zip(shape[2:], kernel, strict=True) for size in pair]
    y = call.emit(
        made(build.product),
        [(x, ["n", "in", *space]), (weight, ["in", "out", *inner])],
        out,
        part="product" if call["bias"] else "",
        result=replace(call.result, shape=(shape[0], call.result.shape[1], *size)),
    )
    y = call.viewed(y, call.result.shape)
    return y if call["bias"] is None else _biased(call, y, len(kernel))


def _biased(call: Call, y: Value, space: int) -> Value:
    bias = call.viewed(call["bias"], [call.result.shape[1], *(1 for _ in range(space))])
    return pointwise(call, LINEAR, [y, bias], traffic=BIAS)


def _pool(maximum: bool, call: Call) -> Answer:
    x: Value = call["self"]
    kernel = list(call["kernel_size"])
    stride = list(call["stride"]) or kernel
    return _pooled(call, x, _windows(kernel, stride, call.args.get("dilation", [1])), maximum)


def _adaptive(maximum: bool, call: Call) -> Answer:
    """Pool to a fixed size; to a single element it is a mean."""
    x: Value = call["self"]
    size = list(call["output_size"])
    over = range(x.rank - len(size), x.rank)
    if set(size) == {1} and not maximum:
        return reduced(call, x, over, LINEAR, keep=True)
    lengths = [ceil(call.size(x, at) / out) for at, out in zip(over, size, strict=True)]
    return _pooled(call, x, _windows(lengths, lengths, [1]), maximum)


def _pooled(call: Call, x: Value, windows: Sequence[build.Window], maximum: bool) -> list[Value | None]:
    labels: Labels = [f"d{n}" for n in range(x.rank)]
    space = [f"d{n}" for n in range(x.rank - len(windows), x.rank)]

    def make(nest: Nest) -> Operator:
        named = {nest.loops[at][0]: window for at, window in zip(space, windows, strict=True) if at in nest.loops}
        op = build.pool(nest.name, nest.inputs[0], nest.output, named, maximum=maximum, path=nest.path)
        return _outermost(op, nest, space)

    return [call.emit(make, [(x, labels)], labels, windows=space), *(None for _ in call.results[1:])]


def _outermost(op: Operator, nest: Nest, space: Sequence[str]) -> Operator:
    """Let only the outermost of a spatial dim that is a product be split: windows reach over the inner ones' ends."""
    inner = {loop for label in space for loop in nest.loops_of([label])[1:]}
    return replace(op, splits=tuple(split for split in op.splits if not inner & set(split.loops)))


def _padded(call: Call, x: Value, space: Sequence[int]) -> Value:
    """Pad where there are more windows than rows: the rows of zeros are part of the dim. x[n, group, c, …]."""
    shape = call.shape(x)
    wide = [*shape[:3], *(max(old, new) for old, new in zip(shape[3:], space, strict=True))]
    if wide == shape:
        return x
    labels = [f"d{n}" for n in range(x.rank)]
    longer = [label if old == new else f"own.{label}" for label, old, new in zip(labels, shape, wide, strict=True)]
    whole = [label for pair in zip(labels, longer, strict=True) if len(set(pair)) > 1 for label in pair]
    result = Result(tuple(wide), x.made.element_bytes, True)
    return call.emit(each(LINEAR, whole), [(x, labels)], longer, part="padded", result=result)


def _windows(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[build.Window]:
    """Return the windows. Strides and dilations may be given once for all dims."""
    count = len(kernel)
    strides, gaps = [(list(given) * count)[:count] for given in (stride, dilation)]
    return [build.Window(1 + (size - 1) * gap, step) for size, step, gap in zip(kernel, strides, gaps, strict=True)]


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("aten.convolution", *(f"aten.conv{n}d" for n in (1, 2, 3))), _convolution),
    **dict.fromkeys((f"aten.conv_transpose{n}d" for n in (1, 2, 3)), _transposed),
    **dict.fromkeys((f"aten.max_pool{n}d" for n in (1, 2, 3)), partial(_pool, True)),
    **dict.fromkeys((f"aten.max_pool{n}d_with_indices" for n in (1, 2, 3)), partial(_pool, True)),
    **dict.fromkeys((f"aten.avg_pool{n}d" for n in (1, 2, 3)), partial(_pool, False)),
    **dict.fromkeys((f"aten.adaptive_avg_pool{n}d" for n in (1, 2, 3)), partial(_adaptive, False)),
    **dict.fromkeys((f"aten.adaptive_max_pool{n}d" for n in (1, 2, 3)), partial(_adaptive, True)),
}
