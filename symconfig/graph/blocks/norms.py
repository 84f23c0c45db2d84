"""Norms, and what each kernel of one keeps for its backward.

Tensors are those that autograd saves, by the class files of Transformers 5.24 that write such a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from symconfig.descriptor.sections import Norm
from symconfig.graph import dims as d
from symconfig.graph.blocks.context import Context
from symconfig.graph.implementation import NormKernel
from symconfig.graph.operator import ELEMENT_BYTES, Element, Tensor, Weight

IN_LINEAR = "norm_in_linear"  # the module of a norm that cannot be recomputed alone
_QK = "qk_norm"  # the module of norms of queries and keys
_HALF, _WIDE = Element.ACTIVATION, Element.FP32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """Tensors that one kernel keeps. middle: by name, results on the way as wide as the input. normed: its result
    before the weight, where the weight is trained. weight: the copy of the weight that it makes. statistics: of each
    row, in fp32. moved: bytes for each element of 16 bits, forward and backward.
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
_BOTH = ("mean", "statistics")

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
    NormKernel.EAGER: _Kept(statistics=_BOTH, moved=_LAYER),
    NormKernel.LAYER_WIDE: _Kept(input=_WIDE, statistics=_BOTH, moved=(20, 24)),  # modeling_olmo.py
    NormKernel.LAYER_COPYING: _Kept(weight=_HALF, statistics=_BOTH, moved=_LAYER),  # modeling_nemotron.py
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
    bias: bool = False,
) -> Tensor:
    """Norm over `dim`, or `over` several, with a weight of dims of its own or (empty) without one: RMSNorm or
    LayerNorm. bias: beside the weight; a LayerNorm of the stream has one unless the model says otherwise.
    """
    over, stream = over or (dim,), dim == d.HIDDEN
    centred = ctx.model.norm is Norm.LAYERNORM and (stream or module == _QK)
    weight = weight if weight is not None else (dim,) if ctx.model.norm_weight or not stream else ()
    weights = [ctx.weight(f"{name}.weight", *weight)] if weight else []
    if weights and (bias or (centred and stream and ctx.model.norm_bias)):
        weights.append(ctx.weight(f"{name}.bias", *weight))
    return normed(ctx, name, x, over, weights, centred, module)


def normed(
    ctx: Context, name: str, x: Tensor, over: Sequence[str], weights: Sequence[Weight], centred: bool, module: str
) -> Tensor:
    """Normalise over some dims together, as `norm` does. centred: around the mean, too, as LayerNorm."""
    table = _LAYERNORM if centred else _RMSNORM
    kernel = table.get(ctx.how.norm, table[NormKernel.EAGER])
    saves = list(_saved(kernel, name, x, over, weights))
    forward, backward = kernel.moved
    if kernel.moved == _LAYER and all(one.frozen for one in weights):
        backward = _Kept().moved[1]
    # Once each: input and output, and what is kept besides; backward the input, too, where it is what is kept.
    bare = 2 * ELEMENT_BYTES[_HALF] + sum(one.element_bytes for one in saves if one is not x and one.dims == x.dims)
    once = bare, bare + ELEMENT_BYTES[_HALF] * (x in saves)
    with ctx.build.module(module):
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


def _saved(kernel: _Kept, name: str, x: Tensor, over: Sequence[str], weights: Sequence[Weight]) -> Iterator[Tensor]:
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
