"""The transformer layer and the multi-token-prediction layer, put together from the other blocks."""

from __future__ import annotations

from symconfig.descriptor.layers import NO_MIXER, LayerKind, Mlp
from symconfig.graph import dims as d
from symconfig.graph.block import LAYER, Block, Place
from symconfig.graph.blocks.common import IN_LINEAR, linear, norm, residual
from symconfig.graph.blocks.ends import logits_and_loss
from symconfig.graph.blocks.experts import experts
from symconfig.graph.blocks.mlp import mlp
from symconfig.graph.blocks.streams import add_layer_input, read_streams, stream_dims, write_streams
from symconfig.graph.builder import Context
from symconfig.graph.operator import Leg, Tensor, Use
from symconfig.graph.parts import End, parts

_STREAM = (d.BATCH, d.SEQUENCE, d.HIDDEN)


def layer(ctx: Context, kind: LayerKind) -> Block:
    """Return the block of one transformer layer: a mixer (attention or an alternative), then MLP or experts, each
    behind a norm.
    """
    x = Tensor("layer_in", stream_dims(ctx))
    with ctx.build.module(LAYER):
        out = _body(ctx, x, kind)
    ctx.build.mark_operators()
    return ctx.build.block(kind.name, [x], [out])


def _body(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append a whole layer and return the stream, or all streams, behind it; at its end joins the layer's own input."""
    if ctx.model.streams is not None:
        return _hyper_connected(ctx, x, kind)
    out = _sublayers(ctx, x, kind)
    return out if ctx.model.layer_inputs is None else add_layer_input(ctx, out)


def _sublayers(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append both sublayers with their residuals, or the one that this layer has, and return the stream."""
    if kind.mixer == NO_MIXER:
        return residual(ctx, "mlp_residual", x, _mlp_sublayer(ctx, x, kind))
    normed, attended = _mixer_sublayer(ctx, x, kind)
    if kind.mlp is Mlp.NONE:
        return residual(ctx, "attention_residual", x, attended)
    if not ctx.model.parallel_residual:
        stream = residual(ctx, "attention_residual", x, attended)
        return residual(ctx, "mlp_residual", stream, _mlp_sublayer(ctx, stream, kind))
    done = _mlp_sublayer(ctx, x, kind, normed if ctx.model.shared_input_norm else None)
    both = ctx.build.elementwise("branches", [attended, done], Tensor("branches", _STREAM), linear=True)
    return residual(ctx, "mlp_residual", x, both)


def _hyper_connected(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append both sublayers, each of which reads and writes all residual streams, and return the streams."""
    given, link = read_streams(ctx, "attention_streams", x)
    _, attended = _mixer_sublayer(ctx, given, kind)
    x = write_streams(ctx, "attention_residual", x, attended, link)
    given, link = read_streams(ctx, "mlp_streams", x)
    return write_streams(ctx, "mlp_residual", x, _mlp_sublayer(ctx, given, kind), link)


def _mixer_sublayer(ctx: Context, x: Tensor, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """Append norm and mixer of a layer and return (the mixer's input, its result); two parallel mixers are summed."""
    mixers = [parts().mixer(name) for name in (kind.mixer, kind.beside) if name is not None]
    normed = x
    if ctx.model.norm_before_sublayer:
        alone = mixers[0].norm_apart or not ctx.how.linear.norm_inside
        normed = norm(ctx, "input_norm", x, module="layernorm" if alone else IN_LINEAR)
    with ctx.build.part("self_attn"):
        results = [mixer.build(ctx, normed, kind) for mixer in mixers]
        attended = results[0]
        if len(results) > 1:
            attended = ctx.build.elementwise("mixers_sum", results, Tensor("mixed", _STREAM), linear=True)
    if ctx.model.norm_after_sublayer:
        attended = norm(ctx, "post_attention_norm", attended, module="post_norm")
    return normed, attended


def _mlp_sublayer(ctx: Context, stream: Tensor, kind: LayerKind, normed: Tensor | None = None) -> Tensor:
    """Append the MLP or the experts and return their result. normed: the norm of the stream if they share the mixer's;
    None: their own.
    """
    if not ctx.model.norm_before_sublayer:
        normed = stream
    done = _experts(ctx, stream, normed) if kind.moe else _mlp(ctx, stream, normed, kind)
    return norm(ctx, "post_mlp_norm", done, module="post_norm") if ctx.model.norm_after_sublayer else done


def _experts(ctx: Context, stream: Tensor, normed: Tensor | None) -> Tensor:
    if normed is None:
        with ctx.build.leg(Leg.CHOICE):
            normed = norm(ctx, "mlp_norm", stream)
    with ctx.build.module("moe"), ctx.build.part("mlp"):
        return experts(ctx, normed, stream)


def _mlp(ctx: Context, stream: Tensor, normed: Tensor | None, kind: LayerKind) -> Tensor:
    """Append the MLP, with a norm of the stream unless `normed` is given, and return its result."""
    if normed is None and not ctx.how.linear.norm_inside:
        normed = norm(ctx, "mlp_norm", stream)
    with ctx.build.module("mlp"):
        normed = normed or norm(ctx, "mlp_norm", stream, module=IN_LINEAR)
        with ctx.build.part("mlp"):
            return mlp(ctx, normed, d.WIDE_FFN if kind.wide else d.FFN)


def mtp(ctx: Context) -> Block:
    """Return the block of a multi-token-prediction layer (DeepSeek-V3): two norms, a projection of both, a layer, a
    final norm.

    Its outputs are the stream and a loss; the loss uses the output weight that the head's block holds.
    """
    hidden, embedded = Tensor("mtp_hidden", _STREAM), Tensor("mtp_embedded", _STREAM)
    with ctx.build.module(LAYER):
        a = norm(ctx, "mtp_hidden_norm", hidden, module="mtp_norm")
        b = norm(ctx, "mtp_embedding_norm", embedded, module="mtp_norm")
        both = Tensor("mtp_joined", (*_STREAM[:-1], "mtp_width"))
        ctx.build.elementwise("mtp_concat", [a, b], both, together=[("mtp_width", d.HIDDEN)], linear=True)
        x = Tensor("layer_in", _STREAM)
        columns = Tensor("mtp_columns", (*_STREAM[:-1], d.MTP_COLUMNS))
        linear(ctx, "mtp_proj", both, ("mtp_width",), (d.MTP_COLUMNS,), [Use(columns)])
        ctx.build.elementwise(
            "mtp_gather",
            [Use(columns).renamed((d.MTP_COLUMNS, d.HIDDEN))],
            x,
            loops=(d.GATHERED,),
            traffic=(0, 0),
            linear=True,
        )
        out = _body(ctx, x, ctx.model.kind_of_layer[-1])
        out = norm(ctx, "mtp_final_norm", out, module="final_norm")
    loss = logits_and_loss(ctx, out, shared=True)
    return ctx.build.block("mtp", [hidden, embedded], [out, loss], Place.FURTHER)


PARTS = (End(kind="mtp", place=Place.FURTHER, build=mtp, count=lambda model: model.num_nextn_predict_layers),)
