"""Low-rank adapters beside frozen linear layers: two plain layers, or two that are split themselves."""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.graph import dims as d
from symconfig.graph.blocks.context import Context
from symconfig.graph.implementation import Adapters
from symconfig.graph.operator import Element, Tensor, Use, Weight
from symconfig.graph.parts import parts


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
