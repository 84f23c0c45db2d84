"""The transformer layer and the multi-token-prediction layer, put together from the other blocks."""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.descriptor.layers import NO_MIXER, LayerKind, Mixing, Mlp, Turn
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.graph import dims as d
from symconfig.graph.attended import FULL
from symconfig.graph.block import LAYER, Block, Place
from symconfig.graph.blocks.attention import Read, contiguous, core, rotate
from symconfig.graph.blocks.common import IN_LINEAR, added, linear, norm, nudge, projected, residual
from symconfig.graph.blocks.ends import logits_and_loss
from symconfig.graph.blocks.experts import experts
from symconfig.graph.blocks.mlp import FUSED, mlp
from symconfig.graph.blocks.recurrent import channel_mix
from symconfig.graph.blocks.streams import add_layer_input, altup, laurel, read_streams, stream_dims, write_streams
from symconfig.graph.builder import Context
from symconfig.graph.operator import Element, Leg, Tensor, Use
from symconfig.graph.parts import End, parts

WIDTH, MLP_RANK, RANK, PROJECTED = "shared_in_width", "shared_mlp_rank", "shared_attention_rank", "projected_size"
_ROWS = (d.BATCH, d.SEQUENCE)


def shared_block(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append the shared block of attention and MLP, called from a layer of the stream x[B, S, D], and return its
    projected result. The layer that calls it first holds its weights.

    Attention and an MLP that many layers call, each before its own mixer (Zamba, arXiv:2405.16712; Zamba 2,
    2411.15242).

    y[B, S, D] from the stream and the token's embedding, one beside the other: a norm, attention, another norm, an
    MLP, none of them beside a residual, then a projection of the calling layer's own. Zamba 2 has low-rank matrices
    beside the MLP and, by a switch, beside queries, keys and values, which each calling layer has of its own. Its
    weights are held, reduced and updated by the layer that calls it first. Transformers' ZambaHybridLayer and
    Zamba2HybridLayer.
    """
    ctx.reuses = kind.calls is Turn.CALLS
    with ctx.build.part("shared_block"):
        embedded = ctx.build.from_elsewhere(Tensor("embedded", x.dims))
        both = Tensor("shared_in", (*_ROWS, WIDTH))
        ctx.build.elementwise("shared_concat", [x, embedded], both, together=[(WIDTH, d.HIDDEN)], linear=True)
        normed = norm(ctx, "shared_input_norm", both, WIDTH)
        attended = norm(ctx, "shared_mlp_norm", _shared_attention(ctx, normed, x.dims))
        done = _shared_mlp(ctx, attended)
    ctx.reuses = kind.again
    out = Use(Tensor("shared_out", x.dims)).renamed((d.HIDDEN, PROJECTED))
    return linear(ctx, "shared_projection", done, (d.HIDDEN,), (PROJECTED,), [out])[0]


def _shared_attention(ctx: Context, x: Tensor, stream: Sequence[str]) -> Tensor:
    """Append the shared block's attention over x[B, S, shared_in_width], with low-rank adapters if the model has them,
    and return a tensor with the dims `stream`.
    """
    rank = ctx.model.shared_block.attention_rank if ctx.model.shared_block else 0
    heads = {"q": d.HEADS, "k": d.KV_HEADS, "v": d.KV_HEADS}
    q, k, v = (
        _with_adapters(ctx, f"shared_{name}", x, [Tensor(f"shared_{name}", (*_ROWS, of, d.HEAD_DIM))], rank and RANK)[0]
        for name, of in heads.items()
    )
    if ctx.model.position is Position.ROPE:
        q, k = rotate(ctx, q, k)
    o, out = contiguous(ctx, core(ctx, q, k, v, Read(FULL))), Tensor("shared_attention_out", tuple(stream))
    return projected(ctx, "shared_o_proj", o, out, over=2)


def _shared_mlp(ctx: Context, x: Tensor) -> Tensor:
    """Append the shared block's MLP, gated with low-rank adapters if the model has them, and return its result, as wide
    as x.
    """
    if ctx.model.shared_block is None or not ctx.model.shared_block.mlp_rank:
        return mlp(ctx, x, prefix="shared_")
    halves = [Tensor(f"shared_{name}", (*_ROWS, d.FFN)) for name in ("gate", "up")]
    gate, up = _with_adapters(ctx, "shared_gate_up", x, halves, MLP_RANK, FUSED[d.FFN], ctx.model.mlp_bias)
    active, middle = Tensor("shared_gate_active", gate.dims), Tensor("shared_mlp_hidden", gate.dims)
    ctx.build.elementwise("shared_gate_activation", [gate], active, saves=[gate])
    ctx.build.elementwise("shared_activation", [active, up], middle, saves=[active, up])
    return projected(ctx, "shared_down_proj", middle, Tensor("shared_mlp_out", x.dims), ctx.model.mlp_bias)


def _with_adapters(
    ctx: Context, name: str, x: Tensor, outs: Sequence[Tensor], rank: str | int, fused: str = "", bias: bool = False
) -> list[Tensor]:
    """Append a linear layer and, unless `rank` is 0, low-rank matrices of the calling layer's own; return the (summed)
    results.

    rank: the dim of the rank. fused: the dim of all outputs together; "": a single output.
    """

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


def shared_block_sizes(model: ModelDescriptor) -> dict[str, float]:
    """Return the sizes of the shared block's own dims; empty for a model without one."""
    has, hidden = model.shared_block, model.hidden_size
    if has is None:
        return {}
    return {WIDTH: 2 * hidden, PROJECTED: hidden, MLP_RANK: has.mlp_rank, RANK: has.attention_rank}


STATE = "loop_input"
_STREAM = (d.BATCH, d.SEQUENCE, d.HIDDEN)


def layer(ctx: Context, kind: LayerKind) -> Block:
    """Return the block of one transformer layer: a mixer (attention or an alternative), then MLP or experts, each
    behind a norm.

    A detached layer runs forward only and belongs to no recompute module.
    """
    x = Tensor("layer_in", stream_dims(ctx))
    ctx.reuses = kind.again
    with ctx.build.no_gradient() if kind.detached else ctx.build.module(LAYER):
        out = _body(ctx, x, kind)
    ctx.build.mark_operators()
    return ctx.build.block(kind.name, [x], [out])


def _body(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append a whole layer and return the stream behind it, including what joins the stream before and after the
    sublayers.
    """
    streams = ctx.model.streams
    if streams is not None and streams.mixing is Mixing.PREDICTED:
        return altup(ctx, x, lambda first: _sublayers(ctx, first, kind))
    if streams is not None:
        return _hyper_connected(ctx, x, kind)
    out = _sublayers(ctx, join_loop_state(ctx, x, kind), kind)
    if ctx.model.layer_inputs is not None:
        out = add_layer_input(ctx, out)
    return norm(ctx, "closing_norm", out) if kind.closes else out


def _sublayers(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append both sublayers with their residuals, or the one that this layer has, and return the stream."""
    if ctx.model.hypersphere:
        return _on_hypersphere(ctx, x, kind)
    if kind.mixer == NO_MIXER:
        return residual(ctx, "mlp_residual", x, _mlp_sublayer(ctx, x, kind))
    normed, attended = _mixer_sublayer(ctx, x, kind)
    if kind.mlp is Mlp.NONE:
        return residual(ctx, "attention_residual", x, attended)
    if not ctx.model.parallel_residual:
        stream = _normed(ctx, added(ctx, "attention_residual", x, attended), "attention_stream_norm")
        if ctx.model.laurel_rank is not None:
            around_it, out = laurel(ctx, normed), Tensor("laurel_residual", _STREAM)
            stream = ctx.build.elementwise("laurel_residual", [stream, around_it], out, linear=True)
        return _normed(ctx, added(ctx, "mlp_residual", stream, _mlp_sublayer(ctx, stream, kind)), "mlp_stream_norm")
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


def _on_hypersphere(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append both sublayers of a model on the hypersphere (nGPT) and return the stream, moved towards each sublayer's
    result by learned rates.
    """
    normed, attended = _mixer_sublayer(ctx, x, kind)
    stream = nudge(ctx, "attention_residual", normed, attended)
    normed = norm(ctx, "mlp_norm", stream)
    return nudge(ctx, "mlp_residual", normed, _mlp_sublayer(ctx, stream, kind, normed))


def _normed(ctx: Context, stream: Tensor, name: str) -> Tensor:
    """Return the norm of the stream if the model norms after the residual sum; else the stream itself."""
    return norm(ctx, name, stream) if ctx.model.norm_after_residual else stream


def _mixer_sublayer(ctx: Context, x: Tensor, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """Append norm and mixer of a layer and return (the mixer's input, its result); two parallel mixers are summed."""
    mixers = [parts().mixer(name) for name in (kind.mixer, kind.beside) if name is not None]
    normed = x if kind.calls is Turn.NONE else residual(ctx, "shared_sum", x, shared_block(ctx, x, kind))
    if ctx.model.norm_before_sublayer and kind.input_norm:
        alone = mixers[0].norm_apart or not ctx.how.linear.norm_inside
        normed = gated_stream_norm(ctx, "input_norm", normed, "layernorm" if alone else IN_LINEAR)
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
            normed = gated_stream_norm(ctx, "mlp_norm", stream, "layernorm")
    with ctx.build.module("moe"), ctx.build.part("mlp"):
        return experts(ctx, normed, stream)


def _mlp(ctx: Context, stream: Tensor, normed: Tensor | None, kind: LayerKind) -> Tensor:
    """Append the MLP, with a norm of the stream unless `normed` is given, and return its result."""
    if normed is None and not ctx.how.linear.norm_inside:
        normed = norm(ctx, "mlp_norm", stream)
    with ctx.build.module("mlp"):
        normed = normed or norm(ctx, "mlp_norm", stream, module=IN_LINEAR)
        with ctx.build.part("mlp"):
            if ctx.model.mlp_token_shift:
                return channel_mix(ctx, normed)
            return mlp(ctx, normed, d.WIDE_FFN if kind.wide else d.FFN, cut=kind.cut)


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


def gated_stream_norm(ctx: Context, name: str, x: Tensor, module: str) -> Tensor:
    """Append the norm of a sublayer's input and, if the model has norm gates, its product with the sigmoid of a
    low-rank MLP of it; return the result.

    Transformers' AXK2GatedRMSNorm: the sigmoid and the product are in fp32.
    """
    y = norm(ctx, name, x, module=module)
    if ctx.model.norm_gate_rank is None:
        return y
    low, active = (Tensor(f"{name}.gate_{part}", (*x.dims[:-1], d.NORM_GATE)) for part in ("low", "active"))
    raw, sigmoid = Tensor(f"{name}.gate", x.dims), Tensor(f"{name}.gate_sigmoid", x.dims, Element.FP32)
    with ctx.build.module(module):
        low = projected(ctx, f"{name}_gate_down", y, low)
        ctx.build.elementwise(f"{name}_gate_activation", [low], active, saves=[low])
        raw = projected(ctx, f"{name}_gate_up", active, raw)
        gated = Tensor(f"{name}.gated", x.dims)
        return ctx.build.elementwise(f"{name}_gating", [y, raw], gated, saves=[y, sigmoid], traffic=(2, 2))


def join_loop_state(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return a layer's input: the stream plus the state that joins it where a loop of layers starts (see `Loop`); x
    itself at other layers.

    Transformers' HrmTextModel adds the two stacks' states. DoryModel norms the stream before each iteration, and
    adds the norm of the first iteration's input.
    """
    loop = ctx.model.loop
    if loop is None or not kind.joins:
        return x
    if not loop.normed:
        return _sum(ctx, x, ctx.build.from_elsewhere(Tensor(STATE, x.dims)))
    state = ctx.build.from_elsewhere(Tensor(STATE, x.dims)) if kind.again else norm(ctx, STATE, x)
    return _sum(ctx, norm(ctx, "loop_norm", x), state)


def _sum(ctx: Context, x: Tensor, state: Tensor) -> Tensor:
    return ctx.build.elementwise("loop_join", [x, state], Tensor("loop_joined", x.dims), linear=True)
