"""Norms whose result a small MLP gates (A.X K2)."""

from __future__ import annotations

from symconfig.graph import dims as d
from symconfig.graph.blocks.common import projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.norms import norm
from symconfig.graph.operator import Element, Tensor


def gated_stream_norm(ctx: Context, name: str, x: Tensor, module: str) -> Tensor:
    """Norm a sublayer's input, and multiply it with the sigmoid of a low-rank MLP of it where the model has such gates.

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
