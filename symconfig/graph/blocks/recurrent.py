"""Recurrences with gates: Griffin's linear recurrent unit and RWKV-4's time mixing."""

from __future__ import annotations

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks.common import linear, projected, sigmoid_gate, to_stream
from symconfig.graph.blocks.state_space import convolution
from symconfig.graph.builder import Context
from symconfig.graph.operator import Tensor, Use
from symconfig.graph.parts import Mixer

RG_LRU = "rg_lru"
LRU_WIDTH, KERNEL = "lru_width", "conv1d_width"
BLOCK, BLOCK_OUT, CHANNELS = "lru_block_width", "lru_block_outputs", "lru_channels"


def rg_lru(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append a real-gated linear recurrent unit and return y[B, S, D] from x[B, S, D]. Sizes come from `ctx.model`;
    `kind` is not used.

    A real-gated linear recurrent unit (Griffin, arXiv 2402.19427; RecurrentGemma).

    x[B, S, D] -> a gate y, and x, which a causal convolution and the recurrence mix; two gates of the recurrence are
    block by block, a matrix for each of H num_attention_heads blocks of lru_width / H channels. Transformers'
    RecurrentGemmaRecurrentBlock.

    The recurrence is element-wise in fp32, and taken as one kernel that keeps what it reads and its result.
    Transformers itself runs it token after token, each step a few kernels.
    """
    parts = (Tensor(name, (*x.dims[:-1], d.HEADS, BLOCK)) for name in ("linear_y", "linear_x"))
    gate, value = (projected(ctx, part.name, x, part, bias=True) for part in parts)
    active = Tensor("lru_gate_active", gate.dims)
    ctx.build.elementwise("lru_activation", [gate], active, saves=[gate])
    (mixed,) = convolution(ctx, "conv_1d", [value], CHANNELS, KERNEL, bias=True)
    gates = [_block_gate(ctx, mixed, name) for name in ("input_gate", "recurrent_gate")]
    scanned = Tensor("scanned", mixed.dims)
    ctx.build.elementwise(
        "scan",
        [mixed, *(Use(each).renamed((BLOCK_OUT, BLOCK)) for each in gates)],
        scanned,
        saves=[mixed, *gates, scanned],
        weights=[ctx.weight("recurrent_param", d.HEADS, BLOCK)],
        whole=(d.SEQUENCE,),
    )
    gated = Tensor("lru_gated", scanned.dims)
    ctx.build.elementwise("lru_gating", [scanned, active], gated, saves=[scanned, active])
    return to_stream(ctx, "linear_out", gated, bias=True)


def _block_gate(ctx: Context, x: Tensor, name: str) -> Tensor:
    """Append the product of x with one matrix and bias per block of channels, and return the result, without its
    activation.
    """
    out = Tensor(name, (*x.dims[:-1], BLOCK_OUT))
    weight = ctx.weight(f"{name}_weight", d.HEADS, BLOCK, BLOCK_OUT)
    ctx.build.matmul(name, x, weight, (BLOCK,), [Use(out)], ctx.weight(f"{name}_bias", d.HEADS, BLOCK_OUT))
    return out


def _lru_sizes(model: ModelDescriptor) -> dict[str, float]:
    width = model.mixer(RG_LRU).sizes[LRU_WIDTH]
    block = width // model.num_attention_heads
    return {BLOCK: block, BLOCK_OUT: block, CHANNELS: width}


WKV = "wkv"
WIDTH, GATE_WIDTH = "attention_hidden_size", "receptance_size"
_ROWS = (d.BATCH, d.SEQUENCE)


def wkv(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append RWKV-4's time mixing and return y[B, S, D] from x[B, S, D]. Sizes come from `ctx.model`; `kind` is not
    used.

    RWKV-4's time mixing (arXiv:2305.13048) and the MLP of its kind: both mix each channel with the token before.

    A channel's output is a mean of values weighed by keys that decay with their distance: one kernel runs the
    sequence, a few FLOP for each element, and keeps keys, values and its result (Transformers' RwkvLinearAttention).
    A channels.
    """
    before = shift_tokens(ctx, "attention", x)
    k, v, r = (_from_mix(ctx, name, x, before, WIDTH, "attention") for name in ("key", "value", "receptance"))
    scanned = ctx.build.elementwise(
        "wkv",
        [k, v],
        Tensor("scanned", k.dims),
        saves=[k, v, Tensor("scanned", k.dims)],
        weights=[ctx.weight("time_decay", WIDTH), ctx.weight("time_first", WIDTH)],
        whole=(d.SEQUENCE,),
    )
    return to_stream(ctx, "output", sigmoid_gate(ctx, r, scanned, "attention_gated"))


def channel_mix(ctx: Context, x: Tensor) -> Tensor:
    """Append RWKV's channel mixing and return y[B, S, D] from x[B, S, D]: a squared-ReLU MLP, gated per channel."""
    before = shift_tokens(ctx, "mlp", x)
    up = _from_mix(ctx, "up_proj", x, before, d.FFN, "mlp")
    active = Tensor("mlp_hidden", up.dims)
    positive = Tensor("mlp_positive", up.dims)
    ctx.build.elementwise("mlp_relu", [up], positive, saves=[positive])
    ctx.build.elementwise("mlp_square", [positive], active, saves=[positive])
    out = projected(ctx, "down_proj", active, Tensor("mlp_down", x.dims))
    return sigmoid_gate(ctx, _from_mix(ctx, "mlp_receptance", x, before, GATE_WIDTH, "mlp"), out, "mlp_gated")


def shift_tokens(ctx: Context, name: str, x: Tensor) -> Tensor:
    """Append a copy of x shifted by one token, and return it."""
    return ctx.build.elementwise(
        f"{name}_shift", [x], Tensor(f"{name}_before", x.dims), whole=(d.SEQUENCE,), linear=True
    )


def _from_mix(ctx: Context, name: str, x: Tensor, before: Tensor, width: str, part: str) -> Tensor:
    """Append a projection of x mixed with the previous token by a learned weight per channel, and return it.

    The mix is four eager kernels, which save both inputs. part: the prefix of the mixing weight's name.
    """
    mixed = Tensor(f"{name}_mix", x.dims)
    mix, saves = ctx.weight(f"{part}_{name}.mix", d.HIDDEN), [x, before]
    ctx.build.elementwise(f"{name}_mix", [x, before], mixed, saves=saves, weights=[mix], traffic=(2, 2))
    gate = width == GATE_WIDTH
    out = Tensor(name, x.dims if gate else (*_ROWS, width))
    use = Use(out).renamed((d.HIDDEN, width)) if gate else Use(out)
    return linear(ctx, name, mixed, (d.HIDDEN,), (width,), [use])[0]


PARTS = (
    Mixer(name=RG_LRU, build=rg_lru, sizes=_lru_sizes, tensor_dims=(CHANNELS,), needs=(LRU_WIDTH, KERNEL)),
    Mixer(name=WKV, build=wkv, tensor_dims=(WIDTH,), pieces=(WIDTH,), needs=(WIDTH,)),
)
