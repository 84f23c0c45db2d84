"""Views, which cost nothing and vanish, what takes tensors apart or joins them, convolutions and pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import ceil

from symconfig.graph.program.build import LINEAR, MASKED, NONE, OF_INPUTS, Function, Window
from symconfig.graph.program.torch_source.axes import Group
from symconfig.graph.program.torch_source.recorder import Answer, Call, Result, Rule, Value, labels_of
from symconfig.graph.program.torch_source.rules.arithmetic import pointwise, reduced

# A part of a tensor is read where it lies; its gradient is written into a tensor of the whole size. Joining is the
# reverse (autograd: slices of the gradient are views).
READ_IN_PLACE, GRADIENT_IN_PLACE = (0.0, 1.0), (1.0, 0.0)


def _repeat(call: Call) -> Answer:
    """Return a view that repeats each dim as a whole as often as `repeats` says, by a new outer axis, or, with the
    argument `dim`, each element of that dim, by a new inner axis (key/value heads for their query heads). Dims that
    `repeats` has in addition go in front. Nothing is recorded.
    """
    x, times, axes = call["self"], call["repeats"], call.recorder.axes
    if "dim" in call.args:
        dims = list(x.dims)
        dims[call["dim"]] = (*dims[call["dim"]], *([axes.new(times)] if times > 1 else []))
    else:
        given: list[Group] = [()] * (len(times) - x.rank) + list(x.dims)
        dims = [((axes.new(n),) if n > 1 else ()) + dim for n, dim in zip(times, given, strict=True)]
    axes.distinct(dims)
    return Value(x.made, tuple(dims))


def _transpose(call: Call) -> Answer:
    x: Value = call["self"]
    dims = list(x.dims)
    one, other = (call["dim0"], call["dim1"]) if "dim0" in call.args else (0, x.rank - 1)
    dims[one], dims[other] = dims[other], dims[one]
    return Value(x.made, tuple(dims))


def _slices(call: Call, x: Value, dim: int, taken: Sequence[tuple[int, int, Result]], keep: bool = True) -> list[Value]:
    """Record the parts (start, end, result) of a dim, by one operator without traffic forward, and return them.

    keep: the parts keep the dim; else each must be a single row. If all parts are equally long and begin at multiples
    of their length, shorter than the dim, they are rows of an outer factor, so that the dim inside may be split; else
    the dim cannot be.
    """
    size, inside = call.size(x, dim), labels_of(x.rank)
    lengths = {end - start for start, end, _ in taken}
    length = min(lengths)
    equal = len(lengths) == 1 and size % length == 0 and all(start % length == 0 for start, _, _ in taken)
    if equal and length < size:
        x = call.factored(x, dim, size // length)
        given, whole = [*inside[:dim], "part", *inside[dim:]], ["part"]
        kept = [inside[dim]] * len(taken)
    else:
        given, kept = [*inside[:dim], "whole", *inside[dim + 1 :]], [f"taken{n}" for n in range(len(taken))]
        whole = ["whole", *kept]
    outs = [
        ([*inside[:dim], *([label] if keep else []), *inside[dim + 1 :]], result)
        for label, (_, _, result) in zip(kept, taken, strict=True)
    ]
    return call.emit_all(LINEAR, [(x, given)], outs, over=whole, traffic=READ_IN_PLACE)


def _slice(call: Call) -> Answer:
    """Record a slice and return it; the input itself for a whole dim with step 1.

    A slice with a step, or whose length differs from the result's, counts as one of the result's length from the start.
    Whether the dim can still be split: see `_slices`.
    """
    x: Value = call["self"]
    dim, size = call["dim"] % x.rank, call.size(call["self"], call["dim"])
    start, end, _ = slice(call["start"], call["end"]).indices(size)
    if (start, end) == (0, size) and call["step"] == 1:
        return x
    if call["step"] != 1 or end - start != call.result.shape[dim]:
        start, end = 0, call.result.shape[dim]  # every n-th row: as much of it
    return _slices(call, x, dim, [(start, end, call.result)])[0]


def _select_or_unbind(call: Call) -> Answer:
    """Record the row at `index` without its dim and return it, or without that argument (`unbind`) a list of each row.

    A dim of size 1 is dropped by a view, and nothing recorded.
    """
    x: Value = call["self"]
    dim = call["dim"] % x.rank
    if not x.dims[dim]:
        rows = [Value(x.made, x.dims[:dim] + x.dims[dim + 1 :])]
    else:
        first = call.args.get("index", 0) % call.size(x, dim)
        taken = [(at, at + 1, result) for at, result in enumerate(call.results, first)]
        rows = _slices(call, x, dim, taken, keep=False)
    return rows[0] if "index" in call.args else rows


def _split(call: Call) -> Answer:
    """Record a split of a dim into parts and return them; a single part is the input itself."""
    x, dim = call["self"], call["dim"] % call["self"].rank
    if len(call.results) == 1:
        return [x]
    ends = accumulate(result.shape[dim] for result in call.results)
    return _slices(
        call, x, dim, [(end - one.shape[dim], end, one) for end, one in zip(ends, call.results, strict=True)]
    )


def _cat(call: Call) -> Answer:
    """Record a concatenation and return it; empty tensors are left out, a single one is returned as it is.

    Equal parts are stacked as rows of an outer factor, which cannot be split; unequal ones lie one after the other, and
    the dim cannot be split.
    """
    values: list[Value] = [value for value in call["tensors"] if value is not None]  # without empty ones
    dim = call["dim"] % values[0].rank
    if len(values) == 1:
        return values[0]
    shape, labels = list(call.result.shape), labels_of(len(call.result.shape))
    if len({call.size(value, dim) for value in values}) == 1:
        wide = [*shape[:dim], len(values), shape[dim] // len(values), *shape[dim + 1 :]]
        return call.viewed(_stacked(call, values, dim, wide), shape)
    parts = [f"part{n}" for n in range(len(values))]
    given = [(value, [*labels[:dim], part, *labels[dim + 1 :]]) for value, part in zip(values, parts, strict=True)]
    return call.emit(LINEAR, given, labels, over=[labels[dim], *parts], traffic=GRADIENT_IN_PLACE)


def _stacked(call: Call, values: Sequence[Value], dim: int, shape: Sequence[int]) -> Value:
    """Record values stacked along a new dim, which cannot be split, and return the result, of this shape."""
    labels = labels_of(len(shape) - 1)
    given, out = [(value, labels) for value in values], [*labels[:dim], "part", *labels[dim:]]
    result = replace(call.result, shape=tuple(shape))
    return call.emit(LINEAR, given, out, result=result, over=["part"], traffic=GRADIENT_IN_PLACE)


def _moved(function: Function, call: Call) -> Answer:
    """Record an operator whose elements depend on all along some dims, as one operator of all tensor arguments, with
    the dims aligned at the last one. Dims in which an argument differs from the result, and those that the arguments
    `dim` and `dims` name, cannot be split.
    """
    shape, out = call.result.shape, labels_of(len(call.result.shape))
    inputs, moved = [], {*call.named(out, ["dim", "dims"])}
    for number, value in enumerate(call.tensors):
        labels = list(out[len(out) - value.rank :])
        for position, (size, new) in enumerate(zip(call.shape(value), shape[len(out) - value.rank :], strict=True)):
            if size not in (1, new):
                moved |= {labels[position], f"own{number}.{position}"}
                labels[position] = f"own{number}.{position}"
        inputs.append((value, labels))
    return call.emit(function, inputs, out, over=sorted(moved))


def _select_scatter(call: Call) -> Answer:
    """Record the write of one row of a dim, which cannot be split, into a copy."""
    x, row, dim = call["self"], call["src"], call["dim"] % call["self"].rank
    labels = labels_of(x.rank)
    return call.emit(LINEAR, [(x, labels), (row, labels[:dim] + labels[dim + 1 :])], labels, over=[labels[dim]])


def _detach(call: Call) -> Answer:
    """Record a view without a gradient and without traffic, and return it; the input itself if it has no gradient."""
    x: Value = call["self"]
    if not x.gradient:
        return x
    labels = labels_of(x.rank)
    return call.emit(LINEAR, [(x, labels)], labels, result=replace(call.result, floating=False), traffic=NONE)


# Rules that read nothing: a constant seen otherwise is still that constant.
IN_PLACE: Mapping[str, Rule] = {
    "clone contiguous alias lift_fresh_copy lift_fresh": lambda call: call["self"],
    "view reshape _unsafe_view unsqueeze squeeze flatten unflatten view_as view_copy": lambda call: call.viewed(
        call["self"], call.result.shape
    ),
    "expand expand_as": lambda call: call.recorder.repeated(call["self"], call.result.shape),
    "transpose t numpy_T swapaxes": _transpose,
    "permute": lambda call: Value(call["self"].made, tuple(call["self"].dims[at] for at in call["dims"])),
}
RULES: Mapping[str, Rule] = {
    "broadcast_tensors": lambda call: [call.recorder.repeated(value, call.result.shape) for value in call["tensors"]],
    "repeat repeat_interleave": _repeat,
    "slice": _slice,
    "select unbind": _select_or_unbind,
    "split split_with_sizes chunk tensor_split": _split,
    "cat": _cat,
    "stack": lambda call: _stacked(call, call["tensors"], call["dim"] % len(call.result.shape), call.result.shape),
    "pad constant_pad_nd roll slice_scatter copy": partial(_moved, LINEAR),
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d": partial(_moved, LINEAR),
    "upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d": partial(_moved, LINEAR),
    "cumsum cumprod diff flip": partial(_moved, OF_INPUTS),
    "gather scatter scatter_add": partial(_moved, MASKED),
    "select_scatter": _select_scatter,
    "detach": _detach,
}


def _convolution(call: Call) -> Answer:
    """Record a convolution of x[n, c, …] with w[o, c / groups, …], and its bias as an operator of its own if there is
    one.

    x is padded first where the output has more rows. Raise NotImplementedError if transposed.
    """
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
    """Record a pool to the size `output_size` and return [it, None, …]; its windows are disjoint, of the input's size
    over the output's, rounded up.

    An average to a single element is a mean over the dims, returned as it is.
    """
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
    """Record padding of x[n, group, c, …] to the spatial sizes `space` where these are larger, and return it; x itself
    if none is. Padded dims cannot be split.
    """
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
    """Return one window per spatial dim: (kernel - 1) * dilation + 1 rows. A single stride or dilation holds for all
    dims.
    """
    count = len(kernel)
    strides, gaps = [(list(given) * count)[:count] for given in (stride, dilation)]
    return [Window(1 + (size - 1) * gap, step) for size, step, gap in zip(kernel, strides, gaps, strict=True)]


WINDOWS: Mapping[str, Rule] = {
    "convolution conv1d conv2d conv3d": _convolution,
    "max_pool1d max_pool2d max_pool3d": partial(_pool, True),
    "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices": partial(_pool, True),
    "avg_pool1d avg_pool2d avg_pool3d": partial(_pool, False),
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d": partial(_adaptive, False),
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d": partial(_adaptive, True),
}
