"""Mamba (Gu & Dao 2023, arXiv 2312.00752): a state space whose steps, inputs and outputs depend on the token.

x[B, S, D] -> x, z; a causal convolution over x; a narrow projection to steps, B and C; steps widened to every channel;
the selective scan; a projection. I ssm_intermediate_size, N ssm_state_size, R time_step_rank, K conv_kernel.
Transformers' MambaMixer, FalconMambaMixer, JambaMambaMixer (with norms of steps, B and C) and ZambaMambaMixer (whose
heads cut the same weights).

The scan is element-wise: state and output of a channel need some 7 N FLOP a token and N exponentials, and nothing of
size N leaves the chip (csrc/selective_scan). mamba-ssm's MambaInnerFn joins all from the convolution to the output
projection and makes the convolution, the steps and the scan's gated result again; SelectiveScanFn keeps what it reads
and its result before the gate. States at every 2,048th token, which both keep, are left out.
"""

from __future__ import annotations

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks import stated
from symconfig.graph.blocks.common import linear, projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.convolved import convolution
from symconfig.graph.blocks.norms import norm
from symconfig.graph.implementation import ScanKernel
from symconfig.graph.operator import Element, Scratch, Tensor, Use
from symconfig.graph.parts import Mixer

NAME = "mamba"
WIDTH, STATE, RANK, KERNEL = "ssm_intermediate_size", "ssm_state_size", "time_step_rank", "conv_kernel"
NEEDS = (WIDTH, STATE, RANK, KERNEL)
CONV_BIAS, BIAS, NORMS = "conv_bias", "proj_bias", "dt_b_c_norms"
SWITCHES = (CONV_BIAS, BIAS, NORMS)
IN_WIDTH, LOW_WIDTH = "selective_in_width", "selective_low_width"
_ROWS = (d.BATCH, d.SEQUENCE)


def mamba(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return y[B, S, D] from x[B, S, D]. Channels are what tp splits; the narrow projection sums over them."""
    has = ctx.model.mixer(NAME).switches
    joined = ctx.how.scan is ScanKernel.WHOLE and NORMS not in has
    inner, z = (Tensor(name, (*_ROWS, WIDTH)) for name in ("ssm_x", "ssm_gate"))
    uses = [Use(part).renamed((WIDTH, IN_WIDTH)) for part in (inner, z)]
    inner, z = linear(ctx, "in_proj", x, (d.HIDDEN,), (IN_WIDTH,), uses, BIAS in has)
    (u,) = convolution(ctx, "conv1d", [inner], WIDTH, KERNEL, CONV_BIAS in has)
    low, b, c = _low(ctx, u, inner if joined else None, NORMS in has)
    step = Tensor("ssm_step", u.dims)
    widened = projected(ctx, "dt_proj", low, step)
    scanned, gated = Tensor("scanned", u.dims), Tensor("scan_gated", u.dims)
    remade = [inner] if joined else [u, step]
    ctx.build.elementwise(
        "scan",
        [u, widened, b, c, z],
        gated,
        saves=[*remade, *_kept_in_turn(ctx, joined, b, c), z, scanned],
        weights=[ctx.weight("A_log", WIDTH, STATE), ctx.weight("D", WIDTH), ctx.weight("dt_proj.bias", WIDTH)],
        whole=(d.SEQUENCE, STATE),
        scratch=[Scratch(tensor, (0, 2)) for tensor in (u, step)] if joined else [],
    )
    out = Tensor("attention_out", x.dims)
    kept = scanned if joined else None
    return projected(ctx, "out_proj", gated, out, BIAS in has, keeps=kept)


def _kept_in_turn(ctx: Context, joined: bool, b: Tensor, c: Tensor) -> list[Tensor]:
    """Return B and C; one function with the projections keeps copies by channel of them, too (mamba-ssm, MambaInnerFn).
    What Transformers makes of A_log is fp32, and kept.
    """
    if ctx.how.scan is ScanKernel.GATED:
        return [b, c]
    copies = [Tensor(f"{one.name}_copied", one.dims) for one in (b, c)] if joined else []
    return [b, c, *copies, *(Tensor(name, (WIDTH, STATE), Element.FP32) for name in ("decay_rate", "A"))]


def _low(ctx: Context, u: Tensor, kept: Tensor | None, norms: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return steps before they are widened, B and C. kept: what u is made from again."""
    parts = [Tensor(name, (*_ROWS, width)) for name, width in (("dt_low", RANK), ("ssm_b", STATE), ("ssm_c", STATE))]
    uses = [Use(part).renamed((part.dims[2], LOW_WIDTH)) for part in parts]
    parts = linear(ctx, "x_proj", u, (WIDTH,), (LOW_WIDTH,), uses, keeps=kept)
    if norms:
        parts = [norm(ctx, f"{part.name}_norm", part, part.dims[-1], "scan_norm") for part in parts]
    return parts[0], parts[1], parts[2]


def _sizes(model: ModelDescriptor) -> dict[str, float]:
    given = model.mixer(NAME).sizes
    return {IN_WIDTH: 2 * given[WIDTH], LOW_WIDTH: given[RANK] + 2 * given[STATE]}


PARTS = (
    Mixer(
        name=NAME,
        build=mamba,
        sizes=_sizes,
        tensor_dims=(IN_WIDTH, WIDTH),
        pieces=(WIDTH,),
        check=stated.check(NEEDS, SWITCHES),
    ),
)
