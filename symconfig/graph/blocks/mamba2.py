"""Mamba-2 (Dao & Gu 2024, arXiv 2405.21060): a state space with one decay per head, scanned by chunks.

x[B, S, D] -> z, x, B, C, dt; a causal convolution over x, B, C; the scan; a gate and a norm by group; a projection.
H mamba_num_heads, P mamba_head_dim, G n_groups, N ssm_state_size, K conv_kernel, Q chunk_size. Sizes are spelled as
NemotronHConfig has them. Transformers' Mamba2Mixer, BambaMixer, GraniteMoeHybridMambaLayer, FalconH1Mixer,
NemotronHMamba2Mixer, Zamba2MambaMixer; Megatron-LM's core/ssm/mamba_mixer.py.

The scan (section 6) has four products: inside a chunk C B' by group and (C B') x by head, then B' x into each chunk's
state and C times the state before it. What mamba-ssm keeps and makes again: ops/triton/ssd_combined.py,
MambaSplitConv1dScanCombinedFn: it keeps what the input projection gave and the scan's result before its gate; backward
it convolves again, and makes C B' and the states again.
"""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.descriptor.layers import LayerKind
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks import stated
from symconfig.graph.blocks.common import linear, projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.convolved import convolution
from symconfig.graph.implementation import ScanKernel
from symconfig.graph.operator import Element, Product, Scratch, Tensor, Use
from symconfig.graph.parts import Mixer

NAME = "mamba2"
HEADS, HEAD_DIM, GROUPS, STATE = "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size"
KERNEL = "conv_kernel"
NEEDS = (HEADS, HEAD_DIM, GROUPS, STATE, KERNEL, d.CHUNK)
CONV_BIAS, IN_BIAS, OUT_BIAS, NORM = "conv_bias", "proj_bias", "out_proj_bias", "gated_norm"
SWITCHES = (CONV_BIAS, IN_BIAS, OUT_BIAS, NORM)
IN_WIDTH, CHANNELS = "mamba_in_width", "mamba_conv_channels"

_SCAN_KERNELS = (6, 17)  # of mamba-ssm, that the host launches: chunk sums, states, their passing, C B', and the scan
_ROWS = (d.BATCH, d.SEQUENCE)
# What Transformers makes of A_log: its exponential, and the negative of that, which the scan reads.
_RATES = tuple(Tensor(name, (HEADS,), Element.FP32) for name in ("decay_rate", "A"))


def mamba2(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Return y[B, S, D] from x[B, S, D]. Heads, and groups of heads that share B and C, are what tp and cp split."""
    has = ctx.model.mixer(NAME).switches
    # Z, x, B, C and dt: one product, whose parts tp cuts each by itself (Megatron-LM's partition_sizes).
    parts = [
        Tensor("ssm_gate", (*_ROWS, HEADS, HEAD_DIM)),
        Tensor("ssm_x", (*_ROWS, HEADS, HEAD_DIM)),
        Tensor("ssm_b", (*_ROWS, GROUPS, STATE)),
        Tensor("ssm_c", (*_ROWS, GROUPS, STATE)),
        Tensor("ssm_dt", (*_ROWS, HEADS)),
    ]
    uses = [Use(part).renamed((part.dims[2], IN_WIDTH)) for part in parts]
    z, *mixed, dt = linear(ctx, "in_proj", x, (d.HIDDEN,), (IN_WIDTH,), uses, (IN_BIAS in has))
    convolved = convolution(ctx, "conv1d", mixed, CHANNELS, KERNEL, CONV_BIAS in has)
    whole = ctx.how.scan is ScanKernel.WHOLE
    gated_inside = not (whole and NORM in has)
    read = [*convolved, dt, *([z] if gated_inside else [])]
    scanned, result = Tensor("scanned", z.dims), Tensor("scan_gated", z.dims)
    ctx.build.elementwise(
        "scan",
        read,
        result if gated_inside else scanned,
        saves=[*mixed, dt, *([z] if gated_inside else []), scanned, *(_RATES if whole else [])],
        weights=[ctx.weight(name, HEADS) for name in ("dt_bias", "A_log", "D")],
        whole=(d.SEQUENCE, HEAD_DIM, STATE),
        together=[(HEADS, GROUPS)],
        launches=_SCAN_KERNELS,
        products=_products(),
        scratch=_scratch(convolved, scanned),
    )
    kept = scanned if whole else None
    if NORM in has:
        result = _norm(ctx, result if gated_inside else scanned, None if gated_inside else z)
    out = Tensor("attention_out", x.dims)
    return projected(ctx, "out_proj", result, out, OUT_BIAS in has, over=2, keeps=kept)


def _products() -> list[Product]:
    """Return multiply-adds of the scan, forward. C B' and the chunks' states are made again for the backward."""
    inside = (*_ROWS, d.CHUNK)
    return [
        Product("c_b", (*inside, GROUPS, STATE), remade=1),
        Product("cb_x", (*inside, HEADS, HEAD_DIM)),
        Product("b_x", (*_ROWS, HEADS, HEAD_DIM, STATE), remade=1),
        Product("c_state", (*_ROWS, HEADS, HEAD_DIM, STATE)),
    ]


def _scratch(convolved: Sequence[Tensor], scanned: Tensor) -> list[Scratch]:
    """Return what passes between the scan's kernels, as mamba-ssm launches them.

    Forward x, B and C are each read by two; the states are written in fp32, read, and passed on in 16 bits, which are
    written and read. Backward x, B and C are convolved again and read by six kernels (states, gate, dx, dB, d(C B'),
    decays) or five, the gradient of the scan's result is written without its gate and read by five; states and their
    gradients both go that way, C B' and its gradient are written once and read twice or once.
    """
    states = Tensor("chunk_states", (d.BATCH, d.CHUNKS, HEADS, HEAD_DIM, STATE), Element.FP32)
    scores = Tensor("chunk_scores", (*_ROWS, GROUPS, d.CHUNK), Element.FP32)
    x, *shared = convolved
    return [
        Scratch(x, (1, 7)),
        *(Scratch(tensor, (1, 6)) for tensor in shared),
        Scratch(scanned, (0, 6)),
        Scratch(states, (3, 8)),
        Scratch(scores, (2, 5)),
    ]


def _norm(ctx: Context, x: Tensor, gate: Tensor | None) -> Tensor:
    """Norm by group, behind the gate. One function with the output projection makes its result again backward."""
    out, statistics = Tensor("ssm_norm", x.dims), Tensor("ssm_norm.statistics", (*_ROWS, GROUPS), Element.FP32)
    read = [x] if gate is None else [x, gate]
    ctx.build.elementwise(
        "ssm_norm",
        read,
        out,
        saves=[*read, statistics],
        weights=[ctx.weight("ssm_norm.weight", HEADS, HEAD_DIM)],
        reduces={HEAD_DIM: 1},
        whole=() if gate is None else (d.SEQUENCE,),
        scratch=[] if gate is None else [Scratch(out, (0, 1))],
    )
    return out


def _sizes(model: ModelDescriptor) -> dict[str, float]:
    given = model.mixer(NAME).sizes
    inner, shared = given[HEADS] * given[HEAD_DIM], 2 * given[GROUPS] * given[STATE]
    return {CHANNELS: inner + shared, IN_WIDTH: 2 * inner + shared + given[HEADS]}


PARTS = (
    Mixer(
        name=NAME,
        build=mamba2,
        sizes=_sizes,
        tensor_dims=(IN_WIDTH, CHANNELS, HEADS, GROUPS),
        exchanged_dims=(CHANNELS, HEADS, GROUPS),
        pieces=(HEADS, GROUPS),
        exchanged_pieces=(HEADS,),  # groups of which there are too few are repeated
        check=stated.check(NEEDS, SWITCHES, {HEADS: GROUPS}),
    ),
)
