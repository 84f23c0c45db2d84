"""What every block is made with: linear layers with their adapters, the residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symconfig.graph import dims as d
from symconfig.graph.block import LAYER
from symconfig.graph.blocks.context import Context
from symconfig.graph.implementation import Adapters, ExpertKernels
from symconfig.graph.operator import Element, Tensor, Use, Weight
from symconfig.graph.parts import parts


def linear(
    ctx: Context,
    name: str,
    x: Tensor,
    inner: Sequence[str],
    width: Sequence[str],
    outputs: Sequence[Use],
    bias: bool = False,
    aliases: Sequence[str] = (),
    shared: bool = False,
    joined: bool = False,
    keeps: Tensor | None = None,
    loops: Sequence[str] = (),
    apart: bool = False,
    remade: bool = False,
) -> list[Tensor]:
    """Return outputs = x * W[inner, width] (+ bias), with a low-rank adapter's sum where the model has one here.

    `width` names the weight's output dims; `aliases` are other names under which an adapter may target it.
    keeps: what it is made from again in its backward, in x's place. loops, apart, remade: see `Builder.matmul`,
    `Operator`.
    """
    batch = (d.EXPERTS,) if d.EXPERTS in x.dims else ()
    weight = ctx.weight(f"{name}.weight", *batch, *inner, *width, shared=shared, joined=joined)
    low = LAYER in ctx.build.modules and outputs[0].tensor.element is Element.ACTIVATION
    ctx.build.matmul(
        name,
        x,
        weight,
        contracted=inner,
        outputs=outputs,
        bias=ctx.weight(f"{name}.bias", *batch, *width, shared=shared) if bias else None,
        low_precision=low,
        sums_bias=not ctx.how.linear.bias_inside,
        per=() if ctx.how.experts.kernels is ExpertKernels.FUSED else batch,
        keeps=keeps,
        loops=loops,
        apart=apart,
        remade=remade,
    )
    if ctx.adapted((name, *aliases)):
        adapter(ctx, name, x, inner, width, outputs)
    return [with_adapter(ctx, name, use.tensor, aliases) for use in outputs]


def projected(
    ctx: Context, name: str, x: Tensor, out: Tensor, bias: bool = False, over: int = 1, **more: Any
) -> Tensor:
    """Return what a linear layer gives as `out`. over: how many of the last dims of x it sums. more: of `linear`."""
    inner, width = x.dims[-over:], out.dims[len(x.dims) - over :]
    return linear(ctx, name, x, inner, width, [Use(out)], bias, **more)[0]


def with_adapter(ctx: Context, name: str, tensor: Tensor, aliases: Sequence[str] = ()) -> Tensor:
    """Return the tensor that carries the linear's result: after the adapter's sum where there is one."""
    return Tensor(f"{tensor.name}.sum", tensor.dims) if ctx.adapted((name, *aliases)) else tensor


def beside_fused(
    ctx: Context, name: str, x: Tensor, width: Sequence[str], part: Tensor, aliases: Sequence[str] = ()
) -> Tensor:
    """Return a part of a fused linear's result, after the sum of an adapter that this part has of its own."""
    if not ctx.adapted((name, *aliases)):
        return part
    adapter(ctx, name, x, x.dims[-1:], width, [Use(part)])
    return Tensor(f"{part.name}.sum", part.dims)


def residual(ctx: Context, name: str, stream: Tensor, branch: Tensor) -> Tensor:
    """Return stream + dropout(branch)."""
    saves = [Tensor(f"{name}.mask", stream.dims, Element.MASK)] if ctx.model.hidden_dropout else []
    total = Tensor(name, stream.dims)  # ranks with parts of a sum would have to draw the same mask
    return ctx.build.elementwise(name, [stream, branch], total, saves=saves, linear=not saves)


def added(ctx: Context, name: str, stream: Tensor, branch: Tensor) -> Tensor:
    """Return the residual sum, whose addends have scales and offsets of each channel where the model has them: then the
    stream is kept in fp32 (Transformers' ZayaResidualScaling).
    """
    if ctx.model.residual_scales:
        stream = rescaled(ctx, f"{name}_stream", stream, Element.FP32)
        branch = rescaled(ctx, f"{name}_branch", branch)
    if ctx.model.stream_scale:
        scale, out = ctx.weight(f"{name}.scale", stream.dims[-1]), Tensor(f"{name}_scaled", stream.dims)
        stream = ctx.build.elementwise(f"{name}_scale", [stream], out, saves=[stream], weights=[scale])
    return residual(ctx, name, stream, branch)


def offset(ctx: Context, name: str, x: Tensor) -> Tensor:
    """Return x plus a bias of each channel."""
    bias = ctx.weight(f"{name}.bias", x.dims[-1])
    return ctx.build.elementwise(name, [x], Tensor(name, x.dims), weights=[bias])


def rescaled(ctx: Context, name: str, x: Tensor, element: Element = Element.ACTIVATION) -> Tensor:
    """Return (x + offset) scale, by channel: two eager kernels, of which the second keeps what the first gives."""
    out, shifted = Tensor(f"{name}_rescaled", x.dims), Tensor(f"{name}_shifted", x.dims, element)
    weights = [ctx.weight(f"{name}.{part}", x.dims[-1]) for part in ("bias", "scale")]
    return ctx.build.elementwise(
        f"{name}_rescale", [x], out, saves=[shifted], weights=weights, traffic=(2, 2), launches=(2, 2)
    )


def adapter(
    ctx: Context, name: str, x: Tensor, inner: Sequence[str], width: Sequence[str], outputs: Sequence[Use]
) -> None:
    """Write outputs + scale * (x * A[inner, R]) * B[R, width], as tensors of the outputs' names with `.sum`."""
    lay = _plain if ctx.how.adapters is Adapters.PLAIN else _parallel
    ups = lay(ctx, name, x, inner, width, outputs)
    for use, up in zip(outputs, ups, strict=True):
        total = Tensor(f"{use.tensor.name}.sum", use.tensor.dims)
        ctx.build.elementwise(f"{use.tensor.name}.lora_add", [use.tensor, up], total, linear=True)


def _dropped(ctx: Context, name: str, x: Tensor, loops: Sequence[str] = ()) -> Tensor | None:
    """Return x after the adapter's dropout, which keeps a mask."""
    assert ctx.model.adapter is not None
    if not ctx.model.adapter.lora_dropout:
        return None
    mask = Tensor(f"{name}.lora_mask", x.dims, Element.MASK)
    out = Tensor(f"{name}.lora_dropped", x.dims)
    return ctx.build.elementwise(f"{name}.lora_dropout", [x], out, saves=[mask], loops=loops)


def _plain(
    ctx: Context, name: str, x: Tensor, inner: Sequence[str], width: Sequence[str], outputs: Sequence[Use]
) -> list[Tensor]:
    batch, rows = ((d.EXPERTS,) if d.EXPERTS in x.dims else ()), tuple(dim for dim in x.dims if dim not in inner)
    x = _dropped(ctx, name, x) or x
    low = Tensor(f"{name}.low", (*rows, d.RANK))
    ctx.build.matmul(f"{name}.lora_A", x, Weight(f"{name}.lora_A", (*batch, *inner, d.RANK)), inner, [Use(low)])
    ups = [Use(Tensor(f"{use.name}.delta", use.tensor.dims), use.along) for use in outputs]
    ctx.build.matmul(f"{name}.lora_B", low, Weight(f"{name}.lora_B", (*batch, d.RANK, *width)), (d.RANK,), ups)
    return [up.tensor for up in ups]


def _parallel(
    ctx: Context, name: str, x: Tensor, inner: Sequence[str], width: Sequence[str], outputs: Sequence[Use]
) -> list[Tensor]:
    """Write B, which is always split by its outputs.

    Beside a column-parallel layer A is split by rank and its result gathered; beside a row-parallel one by its inputs,
    its result reduced, and B's gathered. Each of the two is a parallel layer without sequence parallelism.
    """
    by_rows = any(dim in parts().tensor_dims for dim in inner)
    rows = tuple(dim for dim in x.dims if dim not in inner)
    low = Tensor(f"{name}.low", (*rows, d.RANK))
    if by_rows:
        x = _dropped(ctx, name, x) or x
        ctx.build.matmul(f"{name}.lora_A", x, Weight(f"{name}.lora_A", (*inner, d.RANK)), inner, [Use(low)])
    else:
        columns = Tensor(f"{name}.low_columns", low.dims)
        ctx.build.matmul(
            f"{name}.lora_A", x, Weight(f"{name}.lora_A", (*inner, d.RANK_COLUMNS)), inner,
            [Use(columns).renamed((d.RANK, d.RANK_COLUMNS))], apart=True, keeps=_dropped(ctx, name, x, (d.GATHERED,)),
        )  # fmt: skip
        _gather(ctx, f"{name}.low_gather", columns, low)
    return _columns(ctx, name, low, width, outputs) if by_rows else _widened(ctx, name, low, width, outputs)


def _columns(ctx: Context, name: str, low: Tensor, width: Sequence[str], outputs: Sequence[Use]) -> list[Tensor]:
    """Write B beside a row-parallel layer: its columns are split, gathered, and cut by sequence again where that is
    split; or exchanged for a part of the sequence (a2a_experimental in megatron-bridge, peft/utils.py).
    """
    (use,) = outputs
    cut = Tensor(f"{name}.delta_columns", use.tensor.dims)
    split = tuple(d.ADAPTER_COLUMNS if dim == d.HIDDEN else dim for dim in width)
    ctx.build.matmul(
        f"{name}.lora_B", low, Weight(f"{name}.lora_B", (d.RANK, *split)), (d.RANK,),
        [Use(cut).renamed((d.HIDDEN, d.ADAPTER_COLUMNS))],
    )  # fmt: skip
    if ctx.how.adapters is Adapters.EXCHANGED:
        return [_scaled(ctx, use, cut)]
    whole = Tensor(f"{name}.delta_gathered", cut.dims)
    _gather(ctx, f"{name}.delta_gather", cut, whole)
    return [_scaled(ctx, use, whole)]


def _widened(ctx: Context, name: str, low: Tensor, width: Sequence[str], outputs: Sequence[Use]) -> list[Tensor]:
    """Write B beside a column-parallel layer: split as that layer's outputs are."""
    ups = [Use(Tensor(f"{use.name}.up", use.tensor.dims), use.along) for use in outputs]
    ctx.build.matmul(f"{name}.lora_B", low, Weight(f"{name}.lora_B", (d.RANK, *width)), (d.RANK,), ups)
    return [_scaled(ctx, use, up.tensor) for use, up in zip(outputs, ups, strict=True)]


def _scaled(ctx: Context, use: Use, up: Tensor) -> Tensor:
    """Multiply by alpha / r in a kernel of its own."""
    delta = Tensor(f"{use.tensor.name}.delta", use.tensor.dims)
    return ctx.build.elementwise(f"{use.tensor.name}.lora_scale", [up], delta, linear=True)


def _gather(ctx: Context, name: str, part: Tensor, whole: Tensor) -> None:
    """Gather the tensor, whole along tp."""
    ctx.build.elementwise(name, [part], whole, loops=(d.GATHERED,), traffic=(0, 0), linear=True)
