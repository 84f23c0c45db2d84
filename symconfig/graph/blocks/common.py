"""What every block is made with: linear layers with their adapters, norms, the residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from symconfig.descriptor.model import Norm
from symconfig.graph import dims as d
from symconfig.graph.blocks.adapter import adapter
from symconfig.graph.blocks.context import Context
from symconfig.graph.implementation import ExpertKernels, NormKernel
from symconfig.graph.operator import LAYER, Element, Tensor, Use, Weight

IN_LINEAR = "norm_in_linear"  # the module of a norm that cannot be recomputed alone


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
) -> None:
    """outputs = x * W[inner, width] (+ bias), and a low-rank adapter beside it when the model has one here.

    `width` names the weight's output dims; `aliases` are other names under which an adapter may target it.
    keeps: what it is made from again in its backward, in x's place.
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
    )
    if ctx.adapted((name, *aliases)):
        adapter(ctx, name, x, inner, width, outputs)


def with_adapter(ctx: Context, name: str, tensor: Tensor, aliases: Sequence[str] = ()) -> Tensor:
    """The tensor that carries the linear's result: after the adapter's sum where there is one."""
    return Tensor(f"{tensor.name}.sum", tensor.dims) if ctx.adapted((name, *aliases)) else tensor


def beside_fused(
    ctx: Context, name: str, x: Tensor, width: Sequence[str], part: Tensor, aliases: Sequence[str] = ()
) -> Tensor:
    """A part of a fused linear's result, after the sum of an adapter that this part has of its own."""
    if not ctx.adapted((name, *aliases)):
        return part
    adapter(ctx, name, x, x.dims[-1:], width, [Use(part)])
    return Tensor(f"{part.name}.sum", part.dims)


def norm(
    ctx: Context,
    name: str,
    x: Tensor,
    dim: str = d.HIDDEN,
    module: str = "layernorm",
    weight: Sequence[str] | None = None,
    over: Sequence[str] | None = None,
    bias: bool = False,
) -> Tensor:
    """RMSNorm or LayerNorm over `dim`, or `over` several, with a weight of dims of its own or (empty) without one.
    bias: beside the weight; a LayerNorm of the stream has one unless the model says otherwise.

    An eager RMSNorm keeps its input in fp32 and, for the weight's gradient, its result before the weight; it moves some
    nine times the bytes. An eager LayerNorm is one kernel, too; its backward has a second one for the weights'
    gradients, which reads the input and the output's gradient again (ATen, layer_norm_kernel.cu).
    """
    over, stream = over or (dim,), dim == d.HIDDEN
    centred = ctx.model.norm is Norm.LAYERNORM and stream
    weight = weight if weight is not None else (dim,) if ctx.model.norm_weight or not stream else ()
    weights = [ctx.weight(f"{name}.weight", *weight)] if weight else []
    if weights and (bias or (centred and ctx.model.norm_bias)):
        weights.append(ctx.weight(f"{name}.bias", *weight))
    return normed(ctx, name, x, over, weights, centred, module)


def gated_stream_norm(ctx: Context, name: str, x: Tensor, module: str) -> Tensor:
    """The norm of a sublayer's input, times the sigmoid of a low-rank MLP of it where the model has such gates.

    Transformers' AXK2GatedRMSNorm: the sigmoid and the product are in fp32.
    """
    y = norm(ctx, name, x, module=module)
    if ctx.model.norm_gate_rank is None:
        return y
    low, active = (Tensor(f"{name}.gate_{part}", (*x.dims[:-1], d.NORM_GATE)) for part in ("low", "active"))
    raw, sigmoid = Tensor(f"{name}.gate", x.dims), Tensor(f"{name}.gate_sigmoid", x.dims, Element.FP32)
    with ctx.build.module(module):
        linear(ctx, f"{name}_gate_down", y, (d.HIDDEN,), (d.NORM_GATE,), [Use(low)])
        ctx.build.elementwise(f"{name}_gate_activation", [low], active, saves=[low])
        linear(ctx, f"{name}_gate_up", active, (d.NORM_GATE,), (d.HIDDEN,), [Use(raw)])
        gated = Tensor(f"{name}.gated", x.dims)
        return ctx.build.elementwise(f"{name}_gating", [y, raw], gated, saves=[y, sigmoid], traffic=(2, 2))


def normed(
    ctx: Context,
    name: str,
    x: Tensor,
    over: Sequence[str],
    weights: Sequence[Weight],
    centred: bool,
    module: str,
) -> Tensor:
    """Normalise over some dims together, as `norm` does. centred: around the mean, too, as LayerNorm."""
    frozen = all(one.frozen for one in weights)
    out = Tensor(name, x.dims)
    statistics = Tensor(f"{name}.statistics", tuple(y for y in x.dims if y not in over), Element.FP32)
    eager = ctx.how.norm is not NormKernel.FUSED and not centred
    saves = [Tensor(f"{name}.fp32", x.dims, Element.FP32) if eager else x, statistics]
    if eager and not frozen:
        element = Element.FP32 if ctx.how.norm is NormKernel.EAGER_WIDE else Element.ACTIVATION
        saves.append(Tensor(f"{name}.normed", x.dims, element))
    traffic: tuple[int | Fraction, int | Fraction] = (1, 1)
    if eager:
        traffic = (6, 7)
    elif ctx.how.norm is not NormKernel.FUSED:
        traffic = (1, 1 if frozen else Fraction(5, 3))
    with ctx.build.module(module):
        # LayerNorm reduces a mean and a variance, RMSNorm a mean of squares.
        return ctx.build.elementwise(
            name, [x], out, saves=saves, weights=weights, traffic=traffic, reduces=dict.fromkeys(over, 1 + centred)
        )


def residual(ctx: Context, name: str, stream: Tensor, branch: Tensor) -> Tensor:
    """stream + dropout(branch)."""
    saves = [Tensor(f"{name}.mask", stream.dims, Element.MASK)] if ctx.model.hidden_dropout else []
    total = Tensor(name, stream.dims)  # ranks with parts of a sum would have to draw the same mask
    return ctx.build.elementwise(name, [stream, branch], total, saves=saves, linear=not saves)
