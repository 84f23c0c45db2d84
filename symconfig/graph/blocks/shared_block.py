"""Attention and an MLP that many layers call, each before its own mixer (Zamba, arXiv:2405.16712; Zamba 2, 2411.15242).

y[B, S, D] from the stream and the token's embedding, one beside the other: a norm, attention, another norm, an MLP,
none of them beside a residual, then a projection of the calling layer's own. Zamba 2 has low-rank matrices beside the
MLP and, by a switch, beside queries, keys and values, which each calling layer has of its own. Its weights are held,
reduced and updated by the layer that calls it first. Transformers' ZambaHybridLayer and Zamba2HybridLayer.
"""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.descriptor.layers import LayerKind, Turn
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.graph import dims as d
from symconfig.graph.attended import FULL
from symconfig.graph.blocks.attention import turned
from symconfig.graph.blocks.attention_core import copied, core
from symconfig.graph.blocks.common import linear, projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.indexer import Read
from symconfig.graph.blocks.mlp import FUSED, mlp
from symconfig.graph.blocks.norms import norm
from symconfig.graph.operator import Tensor, Use

WIDTH, MLP_RANK, RANK, PROJECTED = "shared_in_width", "shared_mlp_rank", "shared_attention_rank", "projected_size"
_ROWS = (d.BATCH, d.SEQUENCE)


def called(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return what the shared block gives to a layer of the stream x[B, S, D]."""
    ctx.reuses = kind.calls is Turn.CALLS
    with ctx.build.part("shared_block"):
        embedded = ctx.build.from_elsewhere(Tensor("embedded", x.dims))
        both = Tensor("shared_in", (*_ROWS, WIDTH))
        ctx.build.elementwise("shared_concat", [x, embedded], both, together=[(WIDTH, d.HIDDEN)], linear=True)
        normed = norm(ctx, "shared_input_norm", both, WIDTH)
        attended = norm(ctx, "shared_mlp_norm", _attention(ctx, normed, x.dims))
        done = _mlp(ctx, attended)
    ctx.reuses = kind.again
    out = Use(Tensor("shared_out", x.dims)).renamed((d.HIDDEN, PROJECTED))
    return linear(ctx, "shared_projection", done, (d.HIDDEN,), (PROJECTED,), [out])[0]


def _attention(ctx: Context, x: Tensor, stream: Sequence[str]) -> Tensor:
    rank = ctx.model.shared_block.attention_rank if ctx.model.shared_block else 0
    heads = {"q": d.HEADS, "k": d.KV_HEADS, "v": d.KV_HEADS}
    q, k, v = (
        _projected(ctx, f"shared_{name}", x, [Tensor(f"shared_{name}", (*_ROWS, of, d.HEAD_DIM))], rank and RANK)[0]
        for name, of in heads.items()
    )
    if ctx.model.position is Position.ROPE:
        q, k = turned(ctx, q, k)
    o, out = copied(ctx, core(ctx, q, k, v, Read(FULL))), Tensor("shared_attention_out", tuple(stream))
    return projected(ctx, "shared_o_proj", o, out, over=2)


def _mlp(ctx: Context, x: Tensor) -> Tensor:
    if ctx.model.shared_block is None or not ctx.model.shared_block.mlp_rank:
        return mlp(ctx, x, prefix="shared_")
    halves = [Tensor(f"shared_{name}", (*_ROWS, d.FFN)) for name in ("gate", "up")]
    gate, up = _projected(ctx, "shared_gate_up", x, halves, MLP_RANK, FUSED[d.FFN], ctx.model.mlp_bias)
    active, middle = Tensor("shared_gate_active", gate.dims), Tensor("shared_mlp_hidden", gate.dims)
    ctx.build.elementwise("shared_gate_activation", [gate], active, saves=[gate])
    ctx.build.elementwise("shared_activation", [active, up], middle, saves=[active, up])
    return projected(ctx, "shared_down_proj", middle, Tensor("shared_mlp_out", x.dims), ctx.model.mlp_bias)


def _projected(
    ctx: Context, name: str, x: Tensor, outs: Sequence[Tensor], rank: str | int, fused: str = "", bias: bool = False
) -> list[Tensor]:
    """Project, with what low-rank matrices of the calling layer's own add. fused: the width of all."""

    def uses(given: Sequence[Tensor]) -> list[Use]:
        return [Use(one).renamed((one.dims[-1], fused)) if fused else Use(one) for one in given]

    width = (fused,) if fused else outs[0].dims[2:]
    linear(ctx, f"{name}_proj", x, x.dims[-1:], width, uses(outs), bias)
    if not isinstance(rank, str):
        return list(outs)
    before, ctx.reuses = ctx.reuses, False
    low, added = Tensor(f"{name}_low", (*_ROWS, rank)), [Tensor(f"{one.name}_added", one.dims) for one in outs]
    low = projected(ctx, f"{name}_adapter_in", x, low)
    linear(ctx, f"{name}_adapter_out", low, (rank,), width, uses(added))
    ctx.reuses = before
    return [
        ctx.build.elementwise(f"{one.name}_sum", [one, more], Tensor(f"{one.name}_summed", one.dims), linear=True)
        for one, more in zip(outs, added, strict=True)
    ]


def sizes(model: ModelDescriptor) -> dict[str, float]:
    """Return the sizes of the shared block's own dims."""
    has, hidden = model.shared_block, model.hidden_size
    if has is None:
        return {}
    return {WIDTH: 2 * hidden, PROJECTED: hidden, MLP_RANK: has.mlp_rank, RANK: has.attention_rank}
