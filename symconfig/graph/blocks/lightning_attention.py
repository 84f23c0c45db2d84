"""Lightning attention (MiniMax-Text-01, arXiv 2501.08313): linear attention by blocks, with a decay for each head.

q, k and v pass through an activation; inside a block scores are made as in attention, and the blocks before it are a
state of K x V channels a head: four products. Behind it stand a norm over all heads and a gate from the layer's input.
Transformers' MiniMaxLightningAttention; the block's size is spelled as MiniMaxConfig has it.

The scan is taken as one kernel that keeps q, k and v (arXiv 2401.04658, algorithms 1 and 2). Transformers itself runs
it block after block with products in memory, which takes longer and keeps each block's scores and states.
"""

from __future__ import annotations

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks import stated
from symconfig.graph.blocks.common import linear, projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.implementation import NormKernel
from symconfig.graph.operator import Element, Product, Scratch, Tensor, Use
from symconfig.graph.parts import Mixer

NAME = "lightning_attention"
BLOCK = "block_size"
QKV, VALUE_DIM = "lightning_qkv_width", "lightning_value_channels"
_ROWS = (d.BATCH, d.SEQUENCE)


def lightning_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return y[B, S, D] from x[B, S, D]."""
    raw = [
        Tensor(f"raw_{name}", (*_ROWS, d.HEADS, channels))
        for name, channels in (("q", d.HEAD_DIM), ("k", d.HEAD_DIM), ("v", VALUE_DIM))
    ]
    q, k, v = (Tensor(part.name.removeprefix("raw_"), part.dims) for part in raw)
    raw = linear(ctx, "qkv_proj", x, (d.HIDDEN,), (QKV,), [Use(part).renamed((d.HEADS, QKV)) for part in raw])
    ctx.build.elementwise("qkv_activation", raw, q, further=[k, v], saves=raw)
    normed = _norm(ctx, _scan(ctx, q, k, v))
    gate = projected(ctx, "output_gate", x, Tensor("lightning_gate", normed.dims))
    active, gated = (Tensor(name, gate.dims) for name in ("lightning_gate_active", "lightning_gated"))
    ctx.build.elementwise("output_gate_activation", [gate], active, saves=[active])
    ctx.build.elementwise("output_gating", [active, normed], gated, saves=[active, normed])
    out = Tensor("attention_out", x.dims)
    return projected(ctx, "out_proj", gated, out, over=2, aliases=("o_proj",))


def _norm(ctx: Context, x: Tensor) -> Tensor:
    """Norm over all heads at once; what an eager one keeps and moves is as of `common.norm`."""
    name = "out_norm"
    saves = [Tensor(f"{name}.statistics", _ROWS, Element.FP32)]
    eager = ctx.how.norm is not NormKernel.FUSED
    if eager:
        saves += [Tensor(f"{name}.fp32", x.dims, Element.FP32), Tensor(f"{name}.normed", x.dims)]
    else:
        saves.append(x)
    return ctx.build.elementwise(
        name,
        [x],
        Tensor(name, x.dims),
        saves=saves,
        weights=[ctx.weight(f"{name}.weight", d.HEADS, VALUE_DIM)],
        traffic=(6, 7) if eager else (1, 1),
        reduces={d.HEADS: 1, VALUE_DIM: 1},
    )


def _scan(ctx: Context, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scan in one kernel, whose backward reads all twice: forwards for the queries, backwards for the others."""
    inside, state = (*_ROWS, d.HEADS, d.CHUNK), (*_ROWS, d.HEADS, d.HEAD_DIM, VALUE_DIM)
    out = Tensor("scanned", v.dims)
    return ctx.build.elementwise(
        "scan",
        [q, k, v],
        out,
        saves=[q, k, v],
        whole=(d.SEQUENCE, d.HEAD_DIM, VALUE_DIM),
        launches=(1, 2),
        products=[
            Product("q_k", (*inside, d.HEAD_DIM), remade=1),
            Product("scores_v", (*inside, VALUE_DIM)),
            Product("q_state", state),
            Product("k_v", state, remade=1),
        ],
        scratch=[Scratch(tensor, (0, 1)) for tensor in (q, k, v, out)],
    )


def _sizes(model: ModelDescriptor) -> dict[str, float]:
    width = 3 * model.num_attention_heads * model.head_dim
    return {QKV: width, VALUE_DIM: model.head_dim, d.CHUNK: model.mixer(NAME).sizes[BLOCK]}


PARTS = (Mixer(name=NAME, build=lightning_attention, sizes=_sizes, tensor_dims=(QKV,), check=stated.check((BLOCK,))),)
