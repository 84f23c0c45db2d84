"""Linear attention by chunks: the delta rule, and its two blocks."""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import LayerKind
from symconfig.graph import dims as d
from symconfig.graph.blocks.common import linear, projected, to_stream
from symconfig.graph.blocks.state_space import convolution, gated_norm
from symconfig.graph.operator import Element, Product, Scratch, Tensor, Use
from symconfig.graph.parts import Context, Mixer

CHUNK_SIZE = 64  # tokens; ops/gated_delta_rule/chunk.py and ops/kda/chunk.py of flash-linear-attention
_ROWS = (d.BATCH, d.SEQUENCE)
_KERNELS = (6, 9)  # that one call launches, forward and backward


def normalised(ctx: Context, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Append the scaling of each query and key to length one, as one operator, and return both; it saves the results
    and the fp32 lengths.
    """
    results = [Tensor(f"{tensor.name}_normed", tensor.dims) for tensor in (q, k)]
    lengths = [Tensor(f"{tensor.name}.lengths", tensor.dims[:-1], Element.FP32) for tensor in (q, k)]
    ctx.build.elementwise(
        "normalise",
        [q, k],
        results[0],
        further=results[1:],
        saves=[*results, *lengths],
        reduces={q.dims[-1]: 2},
        whole=(d.SEQUENCE,),
        launches=(2, 2),
    )
    return results[0], results[1]


def delta_rule(
    ctx: Context, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, shares: Sequence[Sequence[str]] = ()
) -> Tensor:
    """Append the chunked delta rule with decays (arXiv 2406.06484, 2412.06464; flash-linear-attention) and return o[B,
    S, H, V] of q, k[B, S, H, K] and v[B, S, H, V]. The sequence and both kinds of channels cannot be split.

    It saves its inputs, with summed decays in place of `decay`, and the inverted matrix of each chunk; with decays by
    channel also the scores (ChunkGatedDeltaRuleFunction, ChunkKDAFunction). Per chunk of C tokens the updates of the
    state are condensed into two products of an inverted triangular matrix (the WY form, section 3.2) with keys and
    values. Per token and head that takes 3 C K + 2 C V + 3 K V multiply-adds; the inversion, some C C / 3, is left out.

    Args:
        decay: fp32, per head or per key channel.
        beta: the strength of each update.
        shares: groups of loops that are split as one: heads of keys that serve several heads of values.
    """
    heads, values, keys = v.dims[-2], v.dims[-1], k.dims[-1]
    by_channel = keys in decay.dims
    summed = Tensor("summed_decay", decay.dims, Element.FP32)
    inverse = Tensor("chunk_inverse", (*_ROWS, heads, d.CHUNK))
    scores = [Tensor("chunk_scores", inverse.dims)] if by_channel else []
    out = Tensor("scanned", v.dims)
    return ctx.build.elementwise(
        "delta_rule",
        [q, k, v, decay, beta],
        out,
        saves=[q, k, v, summed, beta, inverse, *scores],
        whole=(d.SEQUENCE, keys, values),
        together=shares,
        launches=_KERNELS,
        products=tuple(_delta_products(heads, keys, values)),
        scratch=(*_delta_scratch(heads, keys, values, out), *([Scratch(summed, (4, 6))] if by_channel else [])),
    )


def _delta_products(heads: str, keys: str, values: str) -> list[Product]:
    """Return the matrix products inside the delta rule's kernels, each with its loops; of these the backward recomputes
    w, u, the states (w_state, k_v) and the scores (q_k).
    """
    inside = (*_ROWS, heads, d.CHUNK)
    state = (*_ROWS, heads, keys, values)
    return [
        Product("k_k", (*inside, keys)),
        Product("w", (*inside, keys), remade=1),
        Product("u", (*inside, values), remade=1),
        Product("w_state", state, remade=1),
        Product("k_v", state, remade=1),
        Product("q_k", (*inside, keys), remade=1),
        Product("q_state", state),
        Product("scores_v", (*inside, values)),
    ]


def _delta_scratch(heads: str, keys: str, values: str, out: Tensor) -> list[Scratch]:
    """Return the tensors passed between the kernels, beyond one read of each input and one write of each output.

    Forward: scores of keys (written and read in fp32), their inverse (read), w, u (written, read), states and new
    values (written, read), keys (read by four). Backward: the same again, and gradients of all of these; keys are
    read by six kernels, queries and the result's gradient by three, and the keys' gradient is added up from two.
    """
    a_key, a_value = (*_ROWS, heads, keys), (*_ROWS, heads, values)
    return [
        Scratch(Tensor("k_again", a_key), (3, 9)),
        Scratch(Tensor("q_again", a_key), (0, 2)),
        Scratch(Tensor("v_again", a_value), (1, 1)),
        Scratch(Tensor("key_scores", (*_ROWS, heads, d.CHUNK), Element.FP32), (2, 0)),
        Scratch(Tensor("inverse_again", (*_ROWS, heads, d.CHUNK)), (1, 1)),
        Scratch(Tensor("w", a_key), (2, 6)),
        Scratch(Tensor("u", a_value), (2, 2)),
        Scratch(Tensor("new_values", a_value), (2, 2)),
        Scratch(Tensor("chunk_states", (d.BATCH, d.CHUNKS, heads, keys, values)), (2, 4)),
        Scratch(out, (0, 2)),
        Scratch(Tensor("value_gradients", a_value), (0, 5)),
    ]


GATED_DELTA = "gated_delta_net"
KEY_HEADS, VALUE_HEADS = "linear_num_key_heads", "linear_num_value_heads"
KEY_DIM, VALUE_HEAD_DIM = "linear_key_head_dim", "linear_value_head_dim"
DELTA_KERNEL = "linear_conv_kernel_dim"
IN_WIDTH, DELTA_CHANNELS = "delta_in_width", "delta_conv_channels"


def gated_delta_net(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append a gated delta net (Qwen3-Next, Qwen3.5) and return y[B, S, D] from x[B, S, D]. Sizes come from
    `ctx.model`; `kind` is not used.

    x -> q, k, v, z, b, a; a causal convolution over q, k, v; q and k of length one; the delta rule by chunks; a gated
    norm; a projection. Without `whole_scan` queries and keys are repeated for the value heads that they serve
    (Megatron-LM's core/ssm/gated_delta_net); else the delta rule splits both heads together. Transformers'
    Qwen3NextGatedDeltaNet and Qwen3_5GatedDeltaNet.
    """
    q, k, v, z, b, a = _parts_of_delta(ctx, x)
    q, k, v = convolution(ctx, "conv1d", [q, k, v], DELTA_CHANNELS, DELTA_KERNEL)
    q, k = normalised(ctx, q, k)
    shares = [(VALUE_HEADS, KEY_HEADS)]
    if not ctx.how.whole_scan:  # Megatron-LM's layer repeats keys for all values that they serve
        q, k = (_repeated(ctx, tensor) for tensor in (q, k))
        shares = []
    beta, decay = _gates(ctx, b, a)
    scanned = delta_rule(ctx, q, k, v, decay, beta, shares)
    normed = gated_norm(ctx, "out_norm", scanned, z, silu=True, module="gdn_norm_out")
    return to_stream(ctx, "out_proj", normed, aliases=("o_proj",))


def _parts_of_delta(ctx: Context, x: Tensor) -> list[Tensor]:
    """Append the input projections and return [q, k, v, z, b, a]: the first four [B, S, heads, channels], b and a [B,
    S, value heads]. One product if the implementation joins linear layers, else six.
    """
    wide = [
        Tensor(name, (*_ROWS, heads, channels))
        for name, heads, channels in (
            ("delta_q", KEY_HEADS, KEY_DIM),
            ("delta_k", KEY_HEADS, KEY_DIM),
            ("delta_v", VALUE_HEADS, VALUE_HEAD_DIM),
            ("delta_z", VALUE_HEADS, VALUE_HEAD_DIM),
        )
    ]
    narrow = [Tensor(name, (*_ROWS, VALUE_HEADS)) for name in ("delta_b", "delta_a")]
    parts = [*wide, *narrow]
    if ctx.how.linear.joined:
        uses = [Use(part).renamed((part.dims[2], IN_WIDTH)) for part in parts]
        return linear(ctx, "in_proj", x, (d.HIDDEN,), (IN_WIDTH,), uses)
    return [projected(ctx, part.name.replace("delta", "in_proj"), x, part) for part in parts]


def _repeated(ctx: Context, tensor: Tensor) -> Tensor:
    result = Tensor(f"{tensor.name}_repeated", (*_ROWS, VALUE_HEADS, KEY_DIM))
    return ctx.build.elementwise(
        f"repeat_{tensor.name}", [tensor], result, together=[(VALUE_HEADS, KEY_HEADS)], whole=(d.SEQUENCE,), linear=True
    )


def _gates(ctx: Context, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Append beta = sigmoid(b) and decay = -exp(A_log) softplus(a + dt_bias) as one operator, and return (beta, fp32
    decay), each per value head. It saves beta and two fp32 terms of the decay; with `whole_scan` also the rates
    exp(A_log) and their negatives.
    """
    beta, decay = Tensor("beta", b.dims), Tensor("decay", a.dims, Element.FP32)
    steps, soft = (Tensor(name, a.dims, Element.FP32) for name in ("decay_steps", "decay_softplus"))
    rates = [Tensor(name, (VALUE_HEADS,), Element.FP32) for name in ("decay_rate", "decay_rate_negated")]
    weights = [ctx.weight(name, VALUE_HEADS) for name in ("A_log", "dt_bias")]
    ctx.build.elementwise(
        "gates",
        [b, a],
        beta,
        further=[decay],
        saves=[beta, steps, soft, *(rates if ctx.how.whole_scan else [])],
        weights=weights,
        launches=(6, 6),
        whole=(d.SEQUENCE,),
    )
    return beta, decay


def _gated_delta_sizes(model: ModelDescriptor) -> dict[str, float]:
    given = model.mixer(GATED_DELTA).sizes
    keys, values = given[KEY_HEADS] * given[KEY_DIM], given[VALUE_HEADS] * given[VALUE_HEAD_DIM]
    narrow = 2 * given[VALUE_HEADS]
    return {DELTA_CHANNELS: 2 * keys + values, IN_WIDTH: 2 * keys + 2 * values + narrow, d.CHUNK: CHUNK_SIZE}


KIMI_DELTA = "kimi_delta_attention"
HEADS, HEAD_DIM, DELTA_KERNEL = "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"
KDA_VALUE_DIM, LOW, KDA_CHANNELS = "linear_value_channels", "linear_low_width", "kda_conv_channels"


def kimi_delta_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append Kimi delta attention (Kimi Linear, arXiv 2510.26692) and return y[B, S, D] from x[B, S, D]. Sizes come
    from `ctx.model`; `kind` is not used.

    Separate q, k, v projections; a causal convolution; q and k of length one; the delta rule with a decay per key
    channel and beta = sigmoid of a projection; a norm with a sigmoid gate; a projection. Decays and gates come through
    projections of one head's width, which no axis splits. Transformers' KimiLinearDeltaAttention.
    """
    q, k, v = (
        projected(ctx, f"{part}_proj", x, Tensor(f"delta_{part}", (*_ROWS, HEADS, channels)))
        for part, channels in (("q", HEAD_DIM), ("k", HEAD_DIM), ("v", KDA_VALUE_DIM))
    )
    q, k, v = convolution(ctx, "conv1d", [q, k, v], KDA_CHANNELS, DELTA_KERNEL)
    q, k = normalised(ctx, q, k)
    b, beta = projected(ctx, "b_proj", x, Tensor("delta_b", (*_ROWS, HEADS))), Tensor("beta", (*_ROWS, HEADS))
    scanned = delta_rule(
        ctx, q, k, v, _decay(ctx, x), ctx.build.elementwise("beta", [b], beta, saves=[beta], whole=(d.SEQUENCE,))
    )
    gate = _low_rank(ctx, x, "g", Tensor("delta_gate", (*_ROWS, HEADS, KDA_VALUE_DIM)))
    normed = gated_norm(ctx, "o_norm", scanned, gate, silu=False)
    return to_stream(ctx, "o_proj", normed)


def _low_rank(ctx: Context, x: Tensor, name: str, out: Tensor) -> Tensor:
    """Append the projection of x[B, S, D] to `out` through a low rank of one head's width, and return it."""
    low = projected(ctx, f"{name}_a_proj", x, Tensor(f"{name}_low", (*_ROWS, LOW)))
    return projected(ctx, f"{name}_b_proj", low, out)


def _decay(ctx: Context, x: Tensor) -> Tensor:
    """Append the decay -exp(A_log) softplus(f + dt_bias), f a low-rank projection of x[B, S, D], and return it, fp32
    [B, S, heads, channels] (KimiLinearForgetGate). It saves its terms, a mask and the rates.
    """
    f = _low_rank(ctx, x, "f", Tensor("delta_f", (*_ROWS, HEADS, HEAD_DIM)))
    decay = Tensor("decay", f.dims, Element.FP32)
    kept = [Tensor(name, f.dims, Element.FP32) for name in ("decay_exp", "decay_sum", "decay_softplus")]
    kept.append(Tensor("decay_linear", f.dims, Element.MASK))
    kept += [Tensor(name, (HEADS,), Element.FP32) for name in ("decay_rate", "decay_rate_negated")]
    weights = [ctx.weight("A_log", HEADS), ctx.weight("dt_bias", HEADS, HEAD_DIM)]
    return ctx.build.elementwise(
        "forget_gate", [f], decay, saves=kept, weights=weights, traffic=(2, 1), launches=(7, 8)
    )


def _kimi_sizes(model: ModelDescriptor) -> dict[str, float]:
    given = model.mixer(KIMI_DELTA).sizes
    width = given[HEAD_DIM]
    return {KDA_VALUE_DIM: width, LOW: width, KDA_CHANNELS: 3 * given[HEADS] * width, d.CHUNK: CHUNK_SIZE}


PARTS = (
    Mixer(
        name=GATED_DELTA,
        build=gated_delta_net,
        sizes=_gated_delta_sizes,
        tensor_dims=(IN_WIDTH, DELTA_CHANNELS, VALUE_HEADS, KEY_HEADS),
        exchanged_dims=(DELTA_CHANNELS, VALUE_HEADS, KEY_HEADS),
        pieces=(KEY_HEADS, VALUE_HEADS),
        exchanged_pieces=(KEY_HEADS, VALUE_HEADS),
        needs=(KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_HEAD_DIM, DELTA_KERNEL),
        divides={VALUE_HEADS: KEY_HEADS},
    ),
    Mixer(
        name=KIMI_DELTA,
        build=kimi_delta_attention,
        sizes=_kimi_sizes,
        tensor_dims=(KDA_CHANNELS, HEADS),
        exchanged_dims=(KDA_CHANNELS, HEADS),
        pieces=(HEADS,),
        exchanged_pieces=(HEADS,),
        needs=(HEADS, HEAD_DIM, DELTA_KERNEL),
    ),
)
