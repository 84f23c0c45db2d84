"""RWKV-4's time mixing (arXiv:2305.13048) and the MLP of its kind: both mix each channel with the token before.

A channel's output is a mean of values weighed by keys that decay with their distance: one kernel runs the sequence, a
few FLOP for each element, and keeps keys, values and its result (Transformers' RwkvLinearAttention). A channels.
"""

from __future__ import annotations

from symconfig.descriptor.layers import LayerKind
from symconfig.graph import dims as d
from symconfig.graph.blocks import stated
from symconfig.graph.blocks.common import linear, projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.operator import Tensor, Use
from symconfig.graph.parts import Mixer

NAME = "wkv"
WIDTH, GATE_WIDTH = "attention_hidden_size", "receptance_size"
_ROWS = (d.BATCH, d.SEQUENCE)


def wkv(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return y[B, S, D] from x[B, S, D]."""
    before = shifted(ctx, "attention", x)
    k, v, r = (_from_mix(ctx, name, x, before, WIDTH, "attention") for name in ("key", "value", "receptance"))
    scanned = ctx.build.elementwise(
        "wkv",
        [k, v],
        Tensor("scanned", k.dims),
        saves=[k, v, Tensor("scanned", k.dims)],
        weights=[ctx.weight("time_decay", WIDTH), ctx.weight("time_first", WIDTH)],
        whole=(d.SEQUENCE,),
    )
    gated = opened(ctx, "attention", r, scanned)
    return projected(ctx, "output", gated, Tensor("attention_out", x.dims))


def channel_mix(ctx: Context, x: Tensor) -> Tensor:
    """Return y[B, S, D] from x[B, S, D]: an MLP, and a gate of each channel of its result."""
    before = shifted(ctx, "mlp", x)
    up = _from_mix(ctx, "up_proj", x, before, d.FFN, "mlp")
    active = Tensor("mlp_hidden", up.dims)
    positive = Tensor("mlp_positive", up.dims)
    ctx.build.elementwise("mlp_relu", [up], positive, saves=[positive])
    ctx.build.elementwise("mlp_square", [positive], active, saves=[positive])
    out = projected(ctx, "down_proj", active, Tensor("mlp_down", x.dims))
    return opened(ctx, "mlp", _from_mix(ctx, "mlp_receptance", x, before, GATE_WIDTH, "mlp"), out)


def shifted(ctx: Context, name: str, x: Tensor) -> Tensor:
    """Return each token's predecessor: a copy."""
    return ctx.build.elementwise(
        f"{name}_shift", [x], Tensor(f"{name}_before", x.dims), whole=(d.SEQUENCE,), linear=True
    )


def _from_mix(ctx: Context, name: str, x: Tensor, before: Tensor, width: str, part: str) -> Tensor:
    """Project x and the token before, weighed by channel: four eager kernels, which keep both."""
    mixed = Tensor(f"{name}_mix", x.dims)
    mix, saves = ctx.weight(f"{part}_{name}.mix", d.HIDDEN), [x, before]
    ctx.build.elementwise(f"{name}_mix", [x, before], mixed, saves=saves, weights=[mix], traffic=(2, 2))
    gate = width == GATE_WIDTH
    out = Tensor(name, x.dims if gate else (*_ROWS, width))
    use = Use(out).renamed((d.HIDDEN, width)) if gate else Use(out)
    return linear(ctx, name, mixed, (d.HIDDEN,), (width,), [use])[0]


def opened(ctx: Context, name: str, gate: Tensor, x: Tensor) -> Tensor:
    """Return x times the sigmoid of a gate, which keeps its result."""
    active, out = Tensor(f"{gate.name}_active", gate.dims), Tensor(f"{name}_gated", x.dims)
    ctx.build.elementwise(f"{gate.name}_sigmoid", [gate], active, saves=[active])
    return ctx.build.elementwise(f"{name}_gating", [active, x], out, saves=[active, x])


PARTS = (Mixer(name=NAME, build=wkv, tensor_dims=(WIDTH,), pieces=(WIDTH,), check=stated.check((WIDTH,))),)
