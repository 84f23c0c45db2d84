"""Latent attention of some layers with heads, ranks and widths of their own, which sees a window (dots.3).

It has the gate and the norms that the model's latent attention has, and no indexer.
"""

from __future__ import annotations

from dataclasses import replace

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.blocks import stated
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.latent import Widths, attend, widths
from symconfig.graph.operator import Tensor
from symconfig.graph.parts import Mixer

NAME = "window_latent_attention"
HEADS, Q_RANK, KV_RANK = "window_heads", "window_q_lora_rank", "window_kv_lora_rank"
NOPE_DIM, ROPE_DIM, V_DIM = "window_qk_nope_head_dim", "window_qk_rope_head_dim", "window_v_head_dim"
NEEDS = (HEADS, Q_RANK, KV_RANK, NOPE_DIM, ROPE_DIM, V_DIM)
OWN = Widths(
    heads=HEADS,
    q_rank=Q_RANK,
    kv_rank=KV_RANK,
    kv_down="window_kv_down_width",
    qk="window_qk_head_dim",
    value=V_DIM,
    kv_up="window_kv_up_head_width",
    rope=ROPE_DIM,
    nope=NOPE_DIM,
)


def window_latent_attention(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return o[B, S, D] from x[B, S, D]."""
    return attend(ctx, x, replace(kind, window=True), OWN, low_queries=True)


def _sizes(model: ModelDescriptor) -> dict[str, float]:
    given = model.mixer(NAME).sizes
    return widths(
        OWN,
        heads=given[HEADS],
        q_rank=given[Q_RANK],
        kv_rank=given[KV_RANK],
        nope=given[NOPE_DIM],
        rope=given[ROPE_DIM],
        value=given[V_DIM],
    )


PARTS = (
    Mixer(
        name=NAME,
        build=window_latent_attention,
        sizes=_sizes,
        tensor_dims=(HEADS,),
        pieces=(HEADS,),
        norm_apart=True,
        check=stated.check(NEEDS),
    ),
)
