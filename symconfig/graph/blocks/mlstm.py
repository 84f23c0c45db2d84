"""mLSTM (xLSTM, arXiv:2405.04517, 2503.13427): linear attention with gates for input and forgetting of each head.

q and k are narrower than v. Each head has a state of K x V channels and one of K, which normalises; gates are soft
capped. A norm over each head's channels follows, and a sigmoid gate from the layer's input. Inside a chunk scores are
made as in attention; before it lies a state: products q k', scores v, q C, q n and k' v, per token and head C K + C V +
2 K V + K multiply-adds. Transformers' xLSTMLayer; its gates and widths are spelled as xLSTMConfig has them.

The scan is taken as one kernel, which keeps what it reads and two statistics of each row, and makes the states of
chunks again backward (NX-AI/mlstm_kernels, torch/chunkwise/triton_xl_chunk/fwbw.py, save_for_backward). Transformers
without that package runs it in PyTorch's operators, which keep each chunk's scores and states.
"""

from __future__ import annotations

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks import stated
from symconfig.graph.blocks.common import projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.implementation import NormKernel
from symconfig.graph.operator import Element, Product, Scratch, Tensor
from symconfig.graph.parts import Mixer

NAME = "mlstm"
KEY, VALUE = "mlstm_key_dim", "mlstm_value_dim"
_ROWS = (d.BATCH, d.SEQUENCE)


def mlstm(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return y[B, S, D] from x[B, S, D]."""
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


def _sizes(model: ModelDescriptor) -> dict[str, float]:
    return {d.CHUNK: model.mixer(NAME).sizes[d.CHUNK]}


PARTS = (Mixer(name=NAME, build=mlstm, sizes=_sizes, check=stated.check((KEY, VALUE, d.CHUNK))),)
