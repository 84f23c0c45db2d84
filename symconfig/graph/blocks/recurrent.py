"""Recurrences with gates: Griffin's linear recurrent unit, RWKV-4's time mixing, xLSTM's mLSTM."""

from __future__ import annotations

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks.common import linear, projected
from symconfig.graph.blocks.state_space import convolution
from symconfig.graph.builder import Context
from symconfig.graph.implementation import NormKernel
from symconfig.graph.operator import Element, Product, Scratch, Tensor, Use
from symconfig.graph.parts import Mixer

RG_LRU = "rg_lru"
LRU_WIDTH, KERNEL = "lru_width", "conv1d_width"
BLOCK, BLOCK_OUT, CHANNELS = "lru_block_width", "lru_block_outputs", "lru_channels"


def rg_lru(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return y[B, S, D] from x[B, S, D].

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
    gated, out = Tensor("lru_gated", scanned.dims), Tensor("attention_out", x.dims)
    ctx.build.elementwise("lru_gating", [scanned, active], gated, saves=[scanned, active])
    return projected(ctx, "linear_out", gated, out, bias=True, over=2)


def _block_gate(ctx: Context, x: Tensor, name: str) -> Tensor:
    """Gate by one matrix and bias for each block of channels."""
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
    """Return y[B, S, D] from x[B, S, D].

    RWKV-4's time mixing (arXiv:2305.13048) and the MLP of its kind: both mix each channel with the token before.

    A channel's output is a mean of values weighed by keys that decay with their distance: one kernel runs the sequence,
    a few FLOP for each element, and keeps keys, values and its result (Transformers' RwkvLinearAttention). A channels.
    """
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


MLSTM = "mlstm"
KEY, VALUE = "mlstm_key_dim", "mlstm_value_dim"


def mlstm(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return y[B, S, D] from x[B, S, D].

    mLSTM (xLSTM, arXiv:2405.04517, 2503.13427): linear attention with gates for input and forgetting of each head.

    q and k are narrower than v. Each head has a state of K x V channels and one of K, which normalises; gates are soft
    capped. A norm over each head's channels follows, and a sigmoid gate from the layer's input. Inside a chunk scores
    are made as in attention; before it lies a state: products q k', scores v, q C, q n and k' v, per token and head C K
    + C V + 2 K V + K multiply-adds. Transformers' xLSTMLayer; its gates and widths are spelled as xLSTMConfig has them.

    The scan is taken as one kernel, which keeps what it reads and two statistics of each row, and makes the states of
    chunks again backward (NX-AI/mlstm_kernels, torch/chunkwise/triton_xl_chunk/fwbw.py, save_for_backward).
    Transformers without that package runs it in PyTorch's operators, which keep each chunk's scores and states.
    """
    q, k = (_projected(ctx, name, x, (d.HEADS, KEY)) for name in ("q", "k"))
    v, opening = (_projected(ctx, name, x, (d.HEADS, VALUE)) for name in ("v", "output_gate"))
    gates = [_capped(ctx, _projected(ctx, f"{name}_gate", x, (d.HEADS,), bias=True)) for name in ("input", "forget")]
    normed = _norm(ctx, _scan(ctx, q, k, v, gates))
    active, gated = Tensor("output_gate_active", opening.dims), Tensor("mlstm_gated", normed.dims)
    ctx.build.elementwise("output_gate_activation", [opening], active, saves=[active])
    ctx.build.elementwise("output_gating", [active, normed], gated, saves=[active, normed])
    out = Tensor("attention_out", x.dims)
    return projected(ctx, "out_proj", gated, out, over=2)


def _projected(ctx: Context, name: str, x: Tensor, width: tuple[str, ...], bias: bool = False) -> Tensor:
    return projected(ctx, f"{name}_proj", x, Tensor(name, (*_ROWS, *width)), bias)


def _capped(ctx: Context, gate: Tensor) -> Tensor:
    """Cap a gate between two bounds: a hyperbolic tangent keeps its result."""
    inner, out = Tensor(f"{gate.name}_tanh", gate.dims), Tensor(f"{gate.name}_capped", gate.dims)
    return ctx.build.elementwise(f"{gate.name}_cap", [gate], out, saves=[inner], launches=(3, 3), traffic=(3, 3))


def _scan(ctx: Context, q: Tensor, k: Tensor, v: Tensor, gates: list[Tensor]) -> Tensor:
    """Scan in one kernel, whose backward makes each chunk's state again."""
    out = Tensor("scanned", v.dims)
    statistics = [Tensor(f"scanned.{name}", (*_ROWS, d.HEADS), Element.FP32) for name in ("sum", "maximum")]
    inside, state = (*_ROWS, d.HEADS, d.CHUNK), (*_ROWS, d.HEADS, KEY, VALUE)
    return ctx.build.elementwise(
        "scan",
        [q, k, v, *gates],
        out,
        saves=[q, k, v, *gates, *statistics],
        whole=(d.SEQUENCE, KEY, VALUE),
        launches=(2, 5),
        products=[
            Product("q_k", (*inside, KEY), remade=1),
            Product("scores_v", (*inside, VALUE)),
            Product("q_state", state),
            Product("q_sums", (*_ROWS, d.HEADS, KEY)),
            Product("k_v", state, remade=1),
        ],
        scratch=[Scratch(tensor, (0, 1)) for tensor in (q, k, v, out)],
    )


def _norm(ctx: Context, x: Tensor) -> Tensor:
    """Norm over each head's channels, with a weight of each head; eager in fp32, in turn: widened, centred, scaled and
    narrowed.
    """
    name, rows = "head_norm", x.dims[:-1]
    weights = [ctx.weight(f"{name}.weight", d.HEADS, VALUE)]
    statistics = [Tensor(f"{name}.statistics", rows, Element.FP32)]
    eager = ctx.how.norm is not NormKernel.FUSED
    kept = [Tensor(f"{name}.{part}", x.dims, Element.FP32) for part in ("fp32", "centred")] if eager else [x]
    kept += [Tensor(f"{name}.normed", x.dims)] if eager else []
    return ctx.build.elementwise(
        name, [x], Tensor(name, x.dims), saves=[*kept, *statistics], weights=weights, reduces={VALUE: 2},
        traffic=(8, 10) if eager else (1, 1),
    )  # fmt: skip


def _mlstm_sizes(model: ModelDescriptor) -> dict[str, float]:
    return {d.CHUNK: model.mixer(MLSTM).sizes[d.CHUNK]}


PARTS = (
    Mixer(name=RG_LRU, build=rg_lru, sizes=_lru_sizes, tensor_dims=(CHANNELS,), needs=(LRU_WIDTH, KERNEL)),
    Mixer(name=WKV, build=wkv, tensor_dims=(WIDTH,), pieces=(WIDTH,), needs=(WIDTH,)),
    Mixer(name=MLSTM, build=mlstm, sizes=_mlstm_sizes, needs=(KEY, VALUE, d.CHUNK)),
)
