"""Convolutions and pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil

from symconfig.graph.program.build import LINEAR, OF_INPUTS, Window
from symconfig.graph.program.torch_source.call import Answer, Call, Rule, labels_of
from symconfig.graph.program.torch_source.recorder import Value
from symconfig.graph.program.torch_source.rules.arithmetic import pointwise, reduced


def _convolution(call: Call) -> Answer:
    """Lower x[n, c, …] with w[o, c, …]; in groups, each has channels of its own."""
    if call.args.get("transposed"):
        raise NotImplementedError("a transposed convolution")
    x: Value = call["input"]
    weight: Value = call["weight"]
    kernel, out = call.shape(weight)[2:], list(call.result.shape)
    space, inner = labels_of(len(kernel)), [f"k{n}" for n in range(len(kernel))]
    x, weight = call.factored(x, 1, call["groups"]), call.factored(weight, 0, call["groups"])
    windows = _windows(kernel, call["stride"], call["dilation"])
    x = _padded(call, x, out[2:])
    y = call.emit(
        "conv",
        [(x, ["n", "group", "in", *space]), (weight, ["group", "out", "in", *inner])],
        ["n", "group", "out", *space],
        part="product" if call["bias"] else "",
        result=call.of([out[0], *call.shape(weight)[:2], *out[2:]]),
        windows=dict(zip(space, windows, strict=True)),
    )
    return _biased(call, y, len(kernel))


def _transposed(call: Call) -> Answer:
    """Lower windows side by side: each element makes one, so that the output's rows are (element, place within)."""
    x, weight = call["input"], call["weight"]
    shape, kernel = call.shape(x), call.shape(weight)[2:]
    side = list(call["stride"]) == kernel and not any((*call["padding"], *call["output_padding"]))
    if not side or call["groups"] != 1:
        raise NotImplementedError("windows that overlap, or groups")
    space, inner = labels_of(len(kernel)), [f"k{n}" for n in range(len(kernel))]
    out = ["n", "out", *(label for pair in zip(space, inner, strict=True) for label in pair)]
    size = [size for pair in zip(shape[2:], kernel, strict=True) for size in pair]
    y = call.emit(
        "*",
        [(x, ["n", "in", *space]), (weight, ["in", "out", *inner])],
        out,
        part="product" if call["bias"] else "",
        result=call.of([shape[0], call.result.shape[1], *size]),
    )
    return _biased(call, y, len(kernel))


def _biased(call: Call, y: Value, space: int) -> Value:
    y = call.viewed(y, call.result.shape)
    if call["bias"] is None:
        return y
    bias = call.viewed(call["bias"], [call.result.shape[1], *(1 for _ in range(space))])
    return pointwise(call, "bias", [y, bias])


def _pool(maximum: bool, call: Call) -> Answer:
    kernel = call["kernel_size"]
    return _pooled(call, _windows(kernel, call["stride"] or kernel, call.args.get("dilation", [1])), maximum)


def _adaptive(maximum: bool, call: Call) -> Answer:
    """Pool to a fixed size; to a single element it is a mean."""
    x: Value = call["self"]
    size = list(call["output_size"])
    over = range(x.rank - len(size), x.rank)
    if set(size) == {1} and not maximum:
        return reduced(call, x, over, LINEAR, keep=True)
    lengths = [ceil(call.size(x, at) / out) for at, out in zip(over, size, strict=True)]
    return _pooled(call, _windows(lengths, lengths, [1]), maximum)


def _pooled(call: Call, windows: Sequence[Window], maximum: bool) -> list[Value | None]:
    x: Value = call["self"]
    labels = labels_of(x.rank)
    named = dict(zip(labels[x.rank - len(windows) :], windows, strict=True))
    y = call.emit(OF_INPUTS if maximum else LINEAR, [(x, labels)], labels, windows=named)
    return [y, *(None for _ in call.results[1:])]


def _padded(call: Call, x: Value, space: Sequence[int]) -> Value:
    """Pad where there are more windows than rows: the rows of zeros are part of the dim. x[n, group, c, …]."""
    shape = call.shape(x)
    wide = [*shape[:3], *(max(old, new) for old, new in zip(shape[3:], space, strict=True))]
    if wide == shape:
        return x
    labels = labels_of(x.rank)
    longer = [label if old == new else f"own.{label}" for label, old, new in zip(labels, shape, wide, strict=True)]
    whole = [label for pair in zip(labels, longer, strict=True) if len(set(pair)) > 1 for label in pair]
    result = call.of(wide, x.made.element_bytes)
    return call.emit(LINEAR, [(x, labels)], longer, part="padded", result=result, over=whole)


def _windows(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[Window]:
    """Return the windows. Strides and dilations may be given once for all dims."""
    count = len(kernel)
    strides, gaps = [(list(given) * count)[:count] for given in (stride, dilation)]
    return [Window(1 + (size - 1) * gap, step) for size, step, gap in zip(kernel, strides, gaps, strict=True)]


RULES: Mapping[str, Rule] = {
    "convolution conv1d conv2d conv3d": _convolution,
    "conv_transpose1d conv_transpose2d conv_transpose3d": _transposed,
    "max_pool1d max_pool2d max_pool3d": partial(_pool, True),
    "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices": partial(_pool, True),
    "avg_pool1d avg_pool2d avg_pool3d": partial(_pool, False),
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d": partial(_adaptive, False),
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d": partial(_adaptive, True),
}
