"""The transformer layer and the multi-token-prediction layer, put together from the other blocks."""

from __future__ import annotations

from symconfig.descriptor.model import Attention
from symconfig.graph import dims as d
from symconfig.graph.blocks.attention import attention
from symconfig.graph.blocks.common import IN_LINEAR, Context, linear, norm, residual
from symconfig.graph.blocks.ends import logits_and_loss
from symconfig.graph.blocks.experts import experts
from symconfig.graph.blocks.latent import latent_attention
from symconfig.graph.blocks.mlp import mlp
from symconfig.graph.operator import LAYER, Block, Tensor, Use

_STREAM = (d.BATCH, d.SEQUENCE, d.HIDDEN)


def layer(ctx: Context, kind: str) -> Block:
    """One transformer layer: kind is dense or moe, with `_window` for sliding-window attention."""
    x = Tensor("layer_in", _STREAM)
    with ctx.build.module(LAYER):
        out = _body(ctx, x, kind)
    ctx.build.mark_operators()
    return ctx.build.block(kind, [x], [out])


def _body(ctx: Context, x: Tensor, kind: str) -> Tensor:
    attend = latent_attention if ctx.model.attention is Attention.MLA else attention
    after = ctx.model.norm_after_sublayer
    alone = ctx.model.attention is Attention.MLA or not ctx.how.norms_in_linears
    normed = norm(ctx, "input_norm", x, module="layernorm" if alone else IN_LINEAR)
    with ctx.build.part("self_attn"):
        attended = attend(ctx, normed, kind.endswith("_window"))
    if after:
        attended = norm(ctx, "post_attention_norm", attended, module="post_norm")
    stream = x if ctx.model.parallel_residual else residual(ctx, "attention_residual", x, attended)
    done = _experts(ctx, stream) if kind.startswith("moe") else _mlp(ctx, stream)
    if after:
        done = norm(ctx, "post_mlp_norm", done, module="post_norm")
    if ctx.model.parallel_residual:
        done = ctx.build.elementwise("branches", [attended, done], Tensor("branches", _STREAM), linear=True)
    return residual(ctx, "mlp_residual", stream, done)


def _experts(ctx: Context, stream: Tensor) -> Tensor:
    normed = norm(ctx, "mlp_norm", stream)
    with ctx.build.module("moe"), ctx.build.part("mlp"):
        return experts(ctx, normed)


def _mlp(ctx: Context, stream: Tensor) -> Tensor:
    if not ctx.how.norms_in_linears:
        normed = norm(ctx, "mlp_norm", stream)
        with ctx.build.module("mlp"), ctx.build.part("mlp"):
            return mlp(ctx, normed)
    with ctx.build.module("mlp"):
        normed = norm(ctx, "mlp_norm", stream, module=IN_LINEAR)
        with ctx.build.part("mlp"):
            return mlp(ctx, normed)


def mtp(ctx: Context, kind: str) -> Block:
    """A multi-token-prediction layer (DeepSeek-V3): two norms, a projection of both, a layer, a final norm.

    Its logits and loss use the model's output weight, which the head's block holds.
    """
    hidden, embedded = Tensor("mtp_hidden", _STREAM), Tensor("mtp_embedded", _STREAM)
    with ctx.build.module(LAYER):
        a = norm(ctx, "mtp_hidden_norm", hidden, module="mtp_norm")
        b = norm(ctx, "mtp_embedding_norm", embedded, module="mtp_norm")
        joined = Tensor("mtp_joined", (*_STREAM[:-1], "mtp_width"))
        ctx.build.elementwise("mtp_concat", [a, b], joined, together=[("mtp_width", d.HIDDEN)], linear=True)
        x = Tensor("layer_in", _STREAM)
        columns = Tensor("mtp_columns", (*_STREAM[:-1], d.MTP_COLUMNS))
        linear(ctx, "mtp_proj", joined, ("mtp_width",), (d.MTP_COLUMNS,), [Use(columns)])
        ctx.build.elementwise(
            "mtp_gather",
            [Use(columns, ((d.MTP_COLUMNS, d.HIDDEN),))],
            x,
            loops=(d.GATHERED,),
            traffic=(0, 0),
            linear=True,
        )
        out = _body(ctx, x, kind)
        out = norm(ctx, "mtp_final_norm", out, module="final_norm")
    loss = logits_and_loss(ctx, out, shared=True)
    return ctx.build.block("mtp", [hidden, embedded], [out, loss])
