"""What every block is made with: linear layers with their adapters, norms, the residual stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from symconfig.descriptor.sections import Norm
from symconfig.graph import dims as d
from symconfig.graph.block import LAYER
from symconfig.graph.implementation import Adapters, ExpertKernels, NormKernel
from symconfig.graph.operator import ELEMENT_BYTES, Element, Tensor, Use, Weight
from symconfig.graph.parts import Context, parts


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
    """Append outputs = x * W[inner, width] (+ bias), and return the tensors of `outputs`, or their sums with an adapter
    ("NAME.sum") if the model has one for the layer's name or an alias.

    Weights and x with an experts dim have one matrix per expert, run in one launch each unless the expert kernels are
    FUSED. The product may run in low precision inside a layer (module LAYER, no tower's) if its first output is an
    ACTIVATION.

    Args:
        inner: dims of x that are contracted.
        width: the weight's output dims.
        aliases: other names under which an adapter may target the layer.
        keeps: a tensor from which x is recomputed in the backward, saved instead of x.
        shared, joined: see Weight.
        loops, apart, remade: see `Builder.matmul`, `Operator`.
    """
    batch = (d.EXPERTS,) if d.EXPERTS in x.dims else ()
    weight = ctx.weight(f"{name}.weight", *batch, *inner, *width, shared=shared, joined=joined)
    low = LAYER in ctx.build.modules and not ctx.in_tower and outputs[0].tensor.element is Element.ACTIVATION
    ctx.build.matmul(
        name,
        x,
        weight,
        contracted=inner,
        outputs=outputs,
        bias=ctx.weight(f"{name}.bias", *batch, *width, shared=shared) if bias else None,
        low_precision=low,
        sums_bias=bias and not ctx.frozen and not ctx.how.linear.bias_inside,
        per=() if ctx.how.experts.kernels is ExpertKernels.FUSED else batch,
        keeps=keeps,
        loops=loops,
        apart=apart,
        remade=remade,
    )
    if ctx.adapted((name, *aliases)):
        adapter(ctx, name, x, inner, width, outputs)
        return [Tensor(f"{use.name}.sum", use.tensor.dims) for use in outputs]
    return [use.tensor for use in outputs]


def projected(
    ctx: Context, name: str, x: Tensor, out: Tensor, bias: bool = False, over: int = 1, **more: Any
) -> Tensor:
    """Append a linear layer with result `out`, and return it or, if an adapter targets the layer, their sum. over:
    number of last dims of x that are contracted; the weight's output dims are those of `out` after the dims of x that
    are not contracted. more: arguments of `linear`.
    """
    inner, width = x.dims[-over:], out.dims[len(x.dims) - over :]
    return linear(ctx, name, x, inner, width, [Use(out)], bias, **more)[0]


def to_stream(ctx: Context, name: str, x: Tensor, bias: bool = False, **more: Any) -> Tensor:
    """Append the output projection of x[B, S, ...] and return attention_out[B, S, D] (or its sum with an adapter); all
    dims of x behind the sequence are contracted. more: arguments of `linear`.
    """
    out = Tensor("attention_out", (*x.dims[:2], d.HIDDEN))
    return projected(ctx, name, x, out, bias, over=len(x.dims) - 2, **more)


def beside_fused(
    ctx: Context, name: str, x: Tensor, width: Sequence[str], part: Tensor, aliases: Sequence[str] = ()
) -> Tensor:
    """Return `part`, a part of a fused linear layer's result or, if an adapter targets its `name` or an alias, append
    that adapter of x with output dims `width` and return the sum.
    """
    if not ctx.adapted((name, *aliases)):
        return part
    adapter(ctx, name, x, x.dims[-1:], width, [Use(part)])
    return Tensor(f"{part.name}.sum", part.dims)


def residual(ctx: Context, name: str, stream: Tensor, branch: Tensor) -> Tensor:
    """Append stream + dropout(branch) and return it; dropout, with a saved mask, only if the model has it."""
    saves = [Tensor(f"{name}.mask", stream.dims, Element.MASK)] if ctx.model.hidden_dropout else []
    total = Tensor(name, stream.dims)  # ranks with parts of a sum would have to draw the same mask
    return ctx.build.elementwise(name, [stream, branch], total, saves=saves, linear=not saves)


def adapter(
    ctx: Context, name: str, x: Tensor, inner: Sequence[str], width: Sequence[str], outputs: Sequence[Use]
) -> None:
    """Append outputs + scale * (x * A[inner, R]) * B[R, width] as tensors named as the outputs with ".sum"; return
    nothing. A and B are replicated layers if the implementation's adapters are PLAIN, else tensor-parallel ones.
    """
    lay = _replicated_adapter if ctx.how.adapters is Adapters.PLAIN else _parallel_adapter
    ups = lay(ctx, name, x, inner, width, outputs)
    for use, up in zip(outputs, ups, strict=True):
        total = Tensor(f"{use.tensor.name}.sum", use.tensor.dims)
        ctx.build.elementwise(f"{use.tensor.name}.lora_add", [use.tensor, up], total, linear=True)


def _adapter_dropout(ctx: Context, name: str, x: Tensor, loops: Sequence[str] = ()) -> Tensor | None:
    """Append the adapter's dropout of x, which saves a mask, and return the result; None if the adapter has no dropout.
    loops: as of `Builder.elementwise`.
    """
    assert ctx.model.adapter is not None
    if not ctx.model.adapter.lora_dropout:
        return None
    mask = Tensor(f"{name}.lora_mask", x.dims, Element.MASK)
    out = Tensor(f"{name}.lora_dropped", x.dims)
    return ctx.build.elementwise(f"{name}.lora_dropout", [x], out, saves=[mask], loops=loops)


def _replicated_adapter(
    ctx: Context, name: str, x: Tensor, inner: Sequence[str], width: Sequence[str], outputs: Sequence[Use]
) -> list[Tensor]:
    """Append an adapter's dropout (if it has one) and both products, neither of them a parallel layer, and return an
    unscaled delta for each output. A and B have an experts dim if x has one.
    """
    batch, rows = ((d.EXPERTS,) if d.EXPERTS in x.dims else ()), tuple(dim for dim in x.dims if dim not in inner)
    x = _adapter_dropout(ctx, name, x) or x
    low = Tensor(f"{name}.low", (*rows, d.RANK))
    ctx.build.matmul(f"{name}.lora_A", x, Weight(f"{name}.lora_A", (*batch, *inner, d.RANK)), inner, [Use(low)])
    ups = [Use(Tensor(f"{use.name}.delta", use.tensor.dims), use.along) for use in outputs]
    ctx.build.matmul(f"{name}.lora_B", low, Weight(f"{name}.lora_B", (*batch, d.RANK, *width)), (d.RANK,), ups)
    return [up.tensor for up in ups]


def _parallel_adapter(
    ctx: Context, name: str, x: Tensor, inner: Sequence[str], width: Sequence[str], outputs: Sequence[Use]
) -> list[Tensor]:
    """Append an adapter (dropout, if it has one, A, B, scaling) of two tensor-parallel layers without sequence
    parallelism, and return a delta for each output.

    Beside a row-parallel layer (tp may split a dim in `inner`), which has one output, A is split by its inputs and its
    result reduced, B is split by columns and its result gathered over tp, or exchanged for the output's layout by an
    all-to-all (Adapters.EXCHANGED). Else A is split by rank and its result gathered, and the dropped-out x, gathered
    over tp, is saved; B is split by its outputs where tp may split them. Scaling by alpha / r is a kernel of its own.
    """
    low = Tensor(f"{name}.low", (*(dim for dim in x.dims if dim not in inner), d.RANK))
    if any(dim in parts().tensor_dims for dim in inner):
        x, (use,) = _adapter_dropout(ctx, name, x) or x, outputs
        ctx.build.matmul(f"{name}.lora_A", x, Weight(f"{name}.lora_A", (*inner, d.RANK)), inner, [Use(low)])
        cut, whole = (Tensor(f"{name}.delta_{part}", use.tensor.dims) for part in ("columns", "gathered"))
        split = tuple(d.ADAPTER_COLUMNS if dim == d.HIDDEN else dim for dim in width)
        ups = [Use(cut).renamed((d.HIDDEN, d.ADAPTER_COLUMNS))]
        ctx.build.matmul(f"{name}.lora_B", low, Weight(f"{name}.lora_B", (d.RANK, *split)), (d.RANK,), ups)
        made = [cut]
        if ctx.how.adapters is not Adapters.EXCHANGED:
            gather(ctx, f"{name}.delta_gather", cut, whole)
            made = [whole]
    else:
        columns, kept = Tensor(f"{name}.low_columns", low.dims), _adapter_dropout(ctx, name, x, (d.GATHERED,))
        given, weight = (
            Use(columns).renamed((d.RANK, d.RANK_COLUMNS)),
            Weight(f"{name}.lora_A", (*inner, d.RANK_COLUMNS)),
        )
        ctx.build.matmul(f"{name}.lora_A", x, weight, inner, [given], apart=True, keeps=kept)
        gather(ctx, f"{name}.low_gather", columns, low)
        ups = [Use(Tensor(f"{use.name}.up", use.tensor.dims), use.along) for use in outputs]
        ctx.build.matmul(f"{name}.lora_B", low, Weight(f"{name}.lora_B", (d.RANK, *width)), (d.RANK,), ups)
        made = [up.tensor for up in ups]
    deltas = [Tensor(f"{use.name}.delta", use.tensor.dims) for use in outputs]
    for use, up, delta in zip(outputs, made, deltas, strict=True):
        ctx.build.elementwise(f"{use.name}.lora_scale", [up], delta, linear=True)
    return deltas


def gather(ctx: Context, name: str, part: Tensor | Use, whole: Tensor) -> None:
    """Append the gather of `part` to `whole`, replicated over tp; costs no local memory traffic."""
    ctx.build.elementwise(name, [part], whole, loops=(d.GATHERED,), traffic=(0, 0), linear=True)


IN_LINEAR = "norm_in_linear"  # the module of a norm that cannot be recomputed alone
_QK = "qk_norm"  # the module of norms of queries and keys
_HALF, _WIDE = Element.ACTIVATION, Element.FP32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """List the tensors that a norm kernel saves. middle: names of intermediate results of the input's size. normed:
    element type of the result before the weight, saved only for a trained weight. weight: element type of the copy
    of the weight. statistics: per row, in fp32. moved: (forward, backward) bytes per 16-bit element.
    """

    input: Element = _HALF
    middle: tuple[str, ...] = ()
    normed: Element | None = None
    weight: Element | None = None
    statistics: tuple[str, ...] = ("statistics",)
    moved: tuple[int, int] = (4, 6)


# Of chains, what their kernels read and write in fp32 and in 16 bits, as counted (tests/graph/test_counted_traffic.py).
_RMS, _WIDE_RMS, _CHAIN = (36, 92), (40, 104), (60, 144)
# PyTorch's LayerNorm is one kernel; its backward has a second one for the weights' gradients, which reads the input and
# the output's gradient again (ATen, layer_norm_kernel.cu).
_LAYER = (4, 10)
_MEAN_TOO = ("mean", "statistics")

_RMSNORM: Mapping[NormKernel, _Kept] = {
    NormKernel.FUSED: _Kept(),
    NormKernel.EAGER: _Kept(input=_WIDE, normed=_HALF, moved=_RMS),  # modeling_llama.py
    NormKernel.EAGER_WIDE: _Kept(input=_WIDE, normed=_WIDE, moved=_WIDE_RMS),  # modeling_olmo2.py
    NormKernel.EAGER_COPYING: _Kept(input=_WIDE, normed=_WIDE, weight=_WIDE, moved=_WIDE_RMS),  # modeling_gemma.py
    NormKernel.EAGER_POWER: _Kept(  # modeling_gemma4.py
        input=_WIDE, normed=_WIDE, weight=_WIDE, statistics=("mean_square", "statistics"), moved=_WIDE_RMS
    ),
}
_LAYERNORM: Mapping[NormKernel, _Kept] = {
    NormKernel.FUSED: _Kept(),
    NormKernel.EAGER: _Kept(statistics=_MEAN_TOO, moved=_LAYER),
    NormKernel.LAYER_WIDE: _Kept(input=_WIDE, statistics=_MEAN_TOO, moved=(20, 24)),  # modeling_olmo.py
    NormKernel.LAYER_COPYING: _Kept(weight=_HALF, statistics=_MEAN_TOO, moved=_LAYER),  # modeling_nemotron.py
    NormKernel.LAYER_IN_TURN: _Kept(  # modeling_cohere.py
        input=_WIDE, middle=("centred",), normed=_WIDE, weight=_WIDE, moved=_CHAIN
    ),
}


def norm(
    ctx: Context,
    name: str,
    x: Tensor,
    dim: str = d.HIDDEN,
    module: str = "layernorm",
    weight: Sequence[str] | None = None,
    over: Sequence[str] | None = None,
) -> Tensor:
    """Append RMSNorm or LayerNorm of x and return the result, a tensor called `name`.

    It is LayerNorm if the model's norm is, but only over the hidden dim or in the module qk_norm; it has a bias only
    over the hidden dim, beside a weight, if the model's norms have one.

    Args:
        dim: the dim that is normalised.
        module: the recompute module.
        weight: dims of the weight; empty: no weight. None: `dim`, or no weight over the hidden dim of a model without
            norm weights.
        over: several dims normalised together, in place of `dim`; None: `dim`.
    """
    over, stream = over or (dim,), dim == d.HIDDEN
    centred = ctx.model.norm is Norm.LAYERNORM and (stream or module == _QK)
    weight = weight if weight is not None else (dim,) if ctx.model.norm_weight or not stream else ()
    weights = [ctx.weight(f"{name}.weight", *weight)] if weight else []
    if weights and centred and stream and ctx.model.norm_bias:
        weights.append(ctx.weight(f"{name}.bias", *weight))
    return normed(ctx, name, x, over, weights, centred, module)


def normed(
    ctx: Context, name: str, x: Tensor, over: Sequence[str], weights: Sequence[Weight], centred: bool, module: str
) -> Tensor:
    """Append a norm over the dims `over` with these weights, in the recompute module `module`, and return the result.
    The implementation's norm kernel says what is saved and moved; one that the kind of norm lacks counts as EAGER. A
    LayerNorm of PyTorch whose weights are all frozen moves less in its backward. centred: LayerNorm, with two
    reductions (mean, variance) instead of one.
    """
    table = _LAYERNORM if centred else _RMSNORM
    kernel = table.get(ctx.how.norm, table[NormKernel.EAGER])
    saves = list(_norm_keeps(kernel, name, x, over, weights))
    forward, backward = kernel.moved
    if kernel.moved == _LAYER and all(one.frozen for one in weights):
        backward = _Kept().moved[1]
    # Once each: input and output, and what is kept besides; backward the input, too, where it is what is kept.
    bare = 2 * ELEMENT_BYTES[_HALF] + sum(one.element_bytes for one in saves if one is not x and one.dims == x.dims)
    once = bare, bare + ELEMENT_BYTES[_HALF] * (x in saves)
    with ctx.build.within(module):
        # LayerNorm reduces a mean and a variance, RMSNorm a mean of squares.
        return ctx.build.elementwise(
            name,
            [x],
            Tensor(name, x.dims),
            saves=saves,
            weights=weights,
            traffic=(Fraction(forward) / Fraction(once[0]), Fraction(backward) / Fraction(once[1])),
            reduces=dict.fromkeys(over, 1 + centred),
        )


def _norm_keeps(
    kernel: _Kept, name: str, x: Tensor, over: Sequence[str], weights: Sequence[Weight]
) -> Iterator[Tensor]:
    """Yield the tensors that a norm kernel saves: x or an fp32 copy of it, fp32 intermediate results, and fp32
    statistics per row; the normalised values only with a trained weight, a copy of the first weight only with any
    weight, both only if the kernel saves them.
    """
    rows = tuple(dim for dim in x.dims if dim not in over)
    yield x if kernel.input is _HALF else Tensor(f"{name}.fp32", x.dims, kernel.input)
    for middle in kernel.middle:
        yield Tensor(f"{name}.{middle}", x.dims, _WIDE)
    for statistic in kernel.statistics:
        yield Tensor(f"{name}.{statistic}", rows, _WIDE)
    if kernel.normed is not None and any(not one.frozen for one in weights):
        yield Tensor(f"{name}.normed", x.dims, kernel.normed)
    if kernel.weight is not None and weights:
        yield Tensor(f"{name}.weight_copy", weights[0].dims, kernel.weight)
