"""The transformer layer, put together from the other blocks, and what stands around the layers: embedding,
multi-token prediction, final norm, head and loss over a split vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

from symconfig.descriptor.sections import NO_MIXER, LayerKind, Mlp, Position
from symconfig.graph import dims as d
from symconfig.graph.block import LAYER, Block, Place
from symconfig.graph.blocks.common import IN_LINEAR, gather, linear, norm, projected, residual
from symconfig.graph.blocks.mlp import experts, mlp
from symconfig.graph.blocks.streams import add_layer_input, layer_inputs, read_streams, stream_dims, write_streams
from symconfig.graph.blocks.vision import FEATURES, merge_images
from symconfig.graph.implementation import LossKernel
from symconfig.graph.operator import Element, Leg, Scratch, Tensor, Use
from symconfig.graph.parts import Context, End, parts

_STREAM = (d.BATCH, d.SEQUENCE, d.HIDDEN)
# Traffic over reading what is kept once forward, and writing its gradient beside it once backward. Transformer Engine's
# first kernel reads the logits for their maximum and sum, its second reads them and writes their gradient over them,
# which its third scales backward (common/triton/cross_entropy.py; Liger's are the same).
_MADE_AHEAD = (3, 1)
# Passes over logits that are never whole, forward and backward, beside those of the products. Liger's kernel reads a
# chunk twice and writes its gradient over it; TRL's reads a tile, and its backward reads it and writes its gradient.
_BY_CHUNK = {LossKernel.LINEAR: (3, 0), LossKernel.TILED: (1, 2)}
# PyTorch's log-softmax reads a row three times, for its maximum, its sum and its result, unless shared memory holds the
# row; its backward reads the gradient twice (ATen, cuda/SoftMax.cu: cunn_SoftMaxForward, cunn_SoftMaxBackward).
_LOG_SOFTMAX = (2, Fraction(4, 3))


def embedding(ctx: Context) -> Block:
    """Return the block that makes the stream from token ids and, with a vision tower, image features (inputs, too).

    After the look-up, as the model has them: a norm, learned positions, the merge of image features, per-layer inputs,
    dropout with a mask, several streams. A look-up contracts the vocabulary: split over tp, its result is partial; on
    ranks with the entire table nothing splits it. Features get no gradient if nothing before them is trained.
    """
    vocab = d.WHOLE_VOCAB if ctx.whole_look_up else d.VOCAB
    tokens = Tensor("tokens", (d.BATCH, d.SEQUENCE), Element.INDEX)
    x = Tensor("embedded", _STREAM)
    ctx.build.elementwise(
        "word_embedding",
        [tokens],
        x,
        saves=[tokens],
        contracted=(vocab,),
        weights=[ctx.weight("word_embedding.weight", vocab, d.HIDDEN)],
        whole=(vocab,) if ctx.whole_look_up else (),
        linear=True,
    )
    if ctx.model.embedding_norm:
        x = norm(ctx, "embedding_norm", x, module="embedding_norm")
    if ctx.model.position is Position.LEARNED:
        table = ctx.weight("position_embedding.weight", d.POSITIONS, d.HIDDEN)
        x = ctx.build.elementwise("position_embedding", [x], Tensor("positioned", _STREAM), weights=[table])
    features: tuple[Tensor, ...] = ()
    if ctx.model.vision is not None:
        x, features = merge_images(ctx, x), (FEATURES,)
    if ctx.model.layer_inputs is not None:
        layer_inputs(ctx, tokens, x)
    if ctx.model.hidden_dropout:
        mask = Tensor("embedding_mask", _STREAM, Element.MASK)
        x = ctx.build.elementwise("embedding_dropout", [x], Tensor("embedding_out", _STREAM), saves=[mask])
    if ctx.model.streams is not None:
        x = ctx.build.elementwise("spread", [x], Tensor("spread", stream_dims(ctx)), linear=True)
    leaves = features if ctx.model.vision is not None and (ctx.frozen or not ctx.model.vision.trains) else ()
    return ctx.build.block("embedding", [tokens, *features], [x], Place.FIRST, leaves=leaves)


def head(ctx: Context) -> Block:
    """Return the block that makes the loss from the stream: streams merged if there are several, final norm if the
    model has one, logits, cross-entropy. Over a split vocabulary the loss reduces three partial results per token:
    maximum, target logit, sum. A model with `num_labels` has that many values per token and their loss instead, on
    every tensor-parallel rank.
    """
    x = Tensor("last_hidden", stream_dims(ctx))
    seen = x if ctx.model.streams is None else read_streams(ctx, "gather", x, last=True)[0]
    if ctx.model.final_norm:
        seen = norm(ctx, "final_norm", seen, module="final_norm")
    loss = logits_and_loss(ctx, seen) if ctx.model.num_labels is None else _values_and_loss(ctx, seen)
    return ctx.build.block("head", [x], [loss], Place.LAST)


def logits_and_loss(ctx: Context, x: Tensor, shared: bool = False) -> Tensor:
    """Append the output projection and cross-entropy, and return the loss of each token, fp32 [B, S].

    If losses are logged, reading the logits for them is one more operator. The loss holds copies of x and logits for
    each of `deferred_gradients`, and for a LINEAR kernel a chunk as large as x. LINEAR and TILED kernels never have all
    logits in memory; TILED recomputes the product. shared: the output weight is held by another block (multi-token
    prediction).
    """
    kernel = ctx.how.loss.kernel
    logits = Tensor("logits", _LOGITS, Element.TILED if kernel in _BY_CHUNK else Element.ACTIVATION)
    remade = kernel is LossKernel.TILED
    logits = projected(ctx, "lm_head", x, logits, ctx.model.lm_head_bias, shared=shared, remade=remade)
    if ctx.how.loss.logged:
        # Write the logits' log-softmax: each reads the logits, writes them in fp32, reads these and writes their log-
        # softmax: 14 bytes a logit. Three readings (`_LOG_SOFTMAX`) would be 22, with which llm-foundry's runs of 125 M
        # parameters, mostly logits, come out 4 to 10 % slow.
        seen = Tensor("logged_loss", (d.BATCH, d.SEQUENCE), Element.FP32)
        ctx.build.elementwise("log_losses", [logits], seen, contracted=(d.VOCAB,), traffic=(7 * ctx.how.loss.logged, 0))
    waits = [
        Tensor(f"{tensor.name}_deferred_{index}", tensor.dims)
        for index in range(ctx.how.loss.deferred_gradients)
        for tensor in (x, logits)
    ]
    if kernel is LossKernel.LINEAR:  # at least as many logits as all tokens have channels
        waits.append(Tensor("logits_chunk", x.dims))
    return _loss(ctx, logits, waits)


def _values_and_loss(ctx: Context, x: Tensor) -> Tensor:
    """Append the head of a reward or value model (a projection to `num_labels`), a widening to fp32, and the loss,
    which saves the fp32 values; return the loss of each token.
    """
    values, wide = (Tensor(name, (d.BATCH, d.SEQUENCE, d.LABELS), of) for name, of in _VALUES.items())
    values = projected(ctx, "score", x, values, ctx.model.lm_head_bias)
    ctx.build.elementwise("values_fp32", [values], wide, linear=True)
    return ctx.build.elementwise("value_loss", [wide], _LOSS, contracted=(d.LABELS,), saves=[wide], whole=(d.LABELS,))


_LOGITS = (d.BATCH, d.SEQUENCE, d.VOCAB)
_LOSS = Tensor("loss", _LOGITS[:-1], Element.FP32)
_VALUES = {"values": Element.ACTIVATION, "values_fp32": Element.FP32}


def _loss(ctx: Context, logits: Tensor, waits: list[Tensor]) -> Tensor:
    """Append the cross-entropy as the implementation's kernel computes it, and return the loss of each token, fp32 [B,
    S].

    IN_PLACE and APART are one kernel that saves the logits, IN_PLACE writing their gradient over them; LINEAR and TILED
    save none. WIDE_IN_PLACE saves an fp32 copy, overwritten backward. Any other: an fp32 copy, a log-softmax that is
    saved, and the pick of a number; the model's output, and with `kept_outputs` the copy and earlier outputs, stay
    held. Gathered logits have a vocabulary dim that no axis splits. waits: further tensors that the loss holds until
    its backward.
    """
    gathered = ctx.how.gathered_logits or ctx.whole_look_up
    vocab = d.WHOLE_VOCAB if gathered else d.VOCAB
    seen, whole = Use(logits).renamed((d.VOCAB, vocab)), (vocab,) if gathered else ()
    own: dict[str, Any] = {"output": _LOSS, "contracted": (vocab,), "sums": 3, "holds": waits, "whole": whole}
    cross_entropy: Callable[..., Tensor] = partial(ctx.build.elementwise, "cross_entropy", **own)
    if ctx.how.loss.kernel is LossKernel.IN_PLACE:
        return cross_entropy([seen], saves=[logits], traffic=_MADE_AHEAD, overwrites=True)
    if ctx.how.loss.kernel is LossKernel.APART:
        return cross_entropy([seen], saves=[logits])
    if passes := _BY_CHUNK.get(ctx.how.loss.kernel):
        return cross_entropy([seen], scratch=(Scratch(Tensor("logits_tile", (*_LOGITS[:-1], vocab)), passes),))
    dims = (*logits.dims[:-1], vocab)
    wide = Tensor("logits_fp32", dims, Element.FP32)
    if ctx.how.loss.kernel is LossKernel.WIDE_IN_PLACE:
        ctx.build.elementwise("logits_fp32", [seen], wide, whole=whole, linear=True)
        return cross_entropy([wide], saves=[wide], overwrites=True)
    # The model's output and its fp32 copy stay alive while a variable holds them, and so do earlier outputs. Of an
    # output that is given up the allocator keeps the block, since what comes next is twice as wide.
    output = Tensor("gathered_logits", dims) if gathered else logits
    before = [Tensor(f"logits_before_{index}", dims) for index in range(1, ctx.how.loss.kept_outputs)]
    held = [output, *([wide, *before] if ctx.how.loss.kept_outputs else [])]
    ctx.build.elementwise("logits_fp32", [seen], wide, holds=held, whole=whole, linear=True)
    normed = Tensor("log_softmax", dims, Element.FP32)
    ctx.build.elementwise(
        "log_softmax", [wide], normed, saves=[normed], traffic=_LOG_SOFTMAX, whole=whole, reduces={vocab: 2}
    )
    # Picks one number a token; its backward fills a gradient with zeros. Of the three results two are log_softmax's.
    return cross_entropy([normed], traffic=(0, Fraction(1)), reduces={vocab: 1})


def layer(ctx: Context, kind: LayerKind) -> Block:
    """Return the block of one transformer layer: a mixer (attention or an alternative), then MLP or experts, each after
    a norm where the model has one; either is absent if `kind` lacks it. Marks recompute modules.
    """
    x = Tensor("layer_in", stream_dims(ctx))
    with ctx.build.within(LAYER):
        out = _body(ctx, x, kind)
    ctx.build.mark_operators()
    return ctx.build.block(kind.name, [x], [out])


def _body(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append a layer's sublayers (mixer, MLP or experts), each with a residual (dropout of the branch if the model has
    it), and return the stream, or all streams (`_hyper_connected`).

    With parallel_residual both sublayers read x, and their sum is one branch; with shared_input_norm the MLP then reads
    the mixer's norm. The layer's slice of per-layer inputs, if the model has these, is added at the end.
    """
    if ctx.model.streams is not None:
        return _hyper_connected(ctx, x, kind)
    if kind.mixer == NO_MIXER:
        x = residual(ctx, "mlp_residual", x, _mlp_sublayer(ctx, x, kind))
    else:
        normed, attended = _mixer_sublayer(ctx, x, kind)
        if kind.mlp is not Mlp.NONE and ctx.model.parallel_residual:
            done = _mlp_sublayer(ctx, x, kind, normed if ctx.model.shared_input_norm else None)
            both = ctx.build.elementwise("branches", [attended, done], Tensor("branches", _STREAM), linear=True)
            x = residual(ctx, "mlp_residual", x, both)
        else:
            x = residual(ctx, "attention_residual", x, attended)
            if kind.mlp is not Mlp.NONE:
                x = residual(ctx, "mlp_residual", x, _mlp_sublayer(ctx, x, kind))
    return x if ctx.model.layer_inputs is None else add_layer_input(ctx, x)


def _hyper_connected(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append the mixer and then the MLP or experts of a layer with several residual streams, and return the streams:
    each reads one stream made of all of them and writes into all.
    """
    given, link = read_streams(ctx, "attention_streams", x)
    _, attended = _mixer_sublayer(ctx, given, kind)
    x = write_streams(ctx, "attention_residual", x, attended, link)
    given, link = read_streams(ctx, "mlp_streams", x)
    return write_streams(ctx, "mlp_residual", x, _mlp_sublayer(ctx, given, kind), link)


def _mixer_sublayer(ctx: Context, x: Tensor, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """Append norm (if the model norms before sublayers) and mixer of a layer and return (the mixer's input, its
    result). Two parallel mixers of a layer read the same input and are summed. The result is normed if the model norms
    after sublayers. A norm that is fused with the next linear layer cannot be recomputed by itself.
    """
    mixers = [parts().mixer(name) for name in (kind.mixer, kind.beside) if name is not None]
    normed = x
    if ctx.model.norm_before_sublayer:
        alone = mixers[0].norm_apart or not ctx.how.linear.norm_inside
        normed = norm(ctx, "input_norm", x, module="layernorm" if alone else IN_LINEAR)
    with ctx.build.within(part="self_attn"):
        results = [mixer.build(ctx, normed, kind) for mixer in mixers]
        attended = results[0]
        if len(results) > 1:
            attended = ctx.build.elementwise("mixers_sum", results, Tensor("mixed", _STREAM), linear=True)
    if ctx.model.norm_after_sublayer:
        attended = norm(ctx, "post_attention_norm", attended, module="post_norm")
    return normed, attended


def _mlp_sublayer(ctx: Context, stream: Tensor, kind: LayerKind, normed: Tensor | None = None) -> Tensor:
    """Append the MLP (of a wide layer with the wide width) or the experts and return their result, normed if the model
    norms after sublayers. Input: the stream itself if the model does not norm before sublayers; else `normed` or, if
    that is None, a norm of the stream that is appended: in the module mlp if it is fused with the MLP's linear layer,
    else before it.
    """
    if not ctx.model.norm_before_sublayer:
        normed = stream
    if kind.moe:
        if normed is None:
            with ctx.build.within(leg=Leg.CHOICE):
                normed = norm(ctx, "mlp_norm", stream)
        with ctx.build.within("moe", part="mlp"):
            done = experts(ctx, normed, stream)
    else:
        if normed is None and not ctx.how.linear.norm_inside:
            normed = norm(ctx, "mlp_norm", stream)
        with ctx.build.within("mlp"):
            normed = normed or norm(ctx, "mlp_norm", stream, module=IN_LINEAR)
            with ctx.build.within(part="mlp"):
                done = mlp(ctx, normed, d.WIDE_FFN if kind.wide else d.FFN)
    return norm(ctx, "post_mlp_norm", done, module="post_norm") if ctx.model.norm_after_sublayer else done


def mtp(ctx: Context) -> Block:
    """Return the block of a multi-token-prediction layer (DeepSeek-V3): two norms, a column-parallel projection of both
    joined, gathered over tp, a layer of the last layer's kind, a final norm, logits and loss. Inputs: the hidden stream
    and the embedded next tokens. Outputs: the stream and a loss, whose output weight the head's block holds.
    """
    hidden, embedded = Tensor("mtp_hidden", _STREAM), Tensor("mtp_embedded", _STREAM)
    with ctx.build.within(LAYER):
        a = norm(ctx, "mtp_hidden_norm", hidden, module="mtp_norm")
        b = norm(ctx, "mtp_embedding_norm", embedded, module="mtp_norm")
        both = Tensor("mtp_joined", (*_STREAM[:-1], "mtp_width"))
        ctx.build.elementwise("mtp_concat", [a, b], both, together=[("mtp_width", d.HIDDEN)], linear=True)
        x = Tensor("layer_in", _STREAM)
        columns = Tensor("mtp_columns", (*_STREAM[:-1], d.MTP_COLUMNS))
        linear(ctx, "mtp_proj", both, ("mtp_width",), (d.MTP_COLUMNS,), [Use(columns)])
        gather(ctx, "mtp_gather", Use(columns).renamed((d.MTP_COLUMNS, d.HIDDEN)), x)
        out = _body(ctx, x, ctx.model.kind_of_layer[-1])
        out = norm(ctx, "mtp_final_norm", out, module="final_norm")
    loss = logits_and_loss(ctx, out, shared=True)
    return ctx.build.block("mtp", [hidden, embedded], [out, loss], Place.FURTHER)


PARTS = (
    End(kind="embedding", place=Place.FIRST, build=embedding),
    End(kind="mtp", place=Place.FURTHER, build=mtp, count=lambda model: model.num_nextn_predict_layers),
    End(kind="head", place=Place.LAST, build=head),
)
