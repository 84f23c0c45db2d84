"""State spaces: Mamba-2, and the causal convolution and the gated norm around scans; a short convolution."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import LayerKind
from symconfig.graph import dims as d
from symconfig.graph.blocks.common import linear, to_stream
from symconfig.graph.implementation import NormKernel
from symconfig.graph.operator import Element, Product, Scratch, Tensor, Use
from symconfig.graph.parts import Context, Mixer


def convolution(
    ctx: Context, name: str, given: Sequence[Tensor], channels: str, kernel: str, bias: bool = False
) -> list[Tensor]:
    """Append a causal convolution per channel along the sequence, with its activation, as one operator over all of
    `given`, and return its results, in order. It saves its inputs (causal-conv1d, causal_conv1d_interface.py). One
    weight [channels, kernel] covers all inputs, with a bias [channels] if `bias`. Its multiply-adds are left out: they
    take little time compared with the memory traffic.
    """
    results = [Tensor(f"{tensor.name}_convolved", tensor.dims) for tensor in given]
    weights = [ctx.weight(f"{name}.weight", channels, kernel)]
    if bias:
        weights.append(ctx.weight(f"{name}.bias", channels))
    ctx.build.elementwise(
        name, given, results[0], further=results[1:], saves=given, weights=weights, whole=(d.SEQUENCE, kernel)
    )
    return results


def gated_norm(ctx: Context, name: str, x: Tensor, gate: Tensor, silu: bool, module: str = "scan_norm") -> Tensor:
    """Append RMSNorm over each head's channels, times the activation of a gate (SiLU if `silu`, else a sigmoid), in the
    recompute module `module`, and return the result. With a FUSED norm these are two operators (the activation's kind
    then makes no difference), else Transformers' chain as one. The sequence is not split there, as in Megatron-LM's
    gated delta net (_gated_norm_and_a2a): cp splits heads.
    """
    with ctx.build.within(module):
        if ctx.how.norm is not NormKernel.FUSED:
            return _eager_gated_norm(ctx, name, x, gate, silu)
        statistics = Tensor(f"{name}.statistics", x.dims[:-1], Element.FP32)
        normed, result = Tensor(f"{name}.normed", x.dims), Tensor(name, x.dims)
        weights, over = [ctx.weight(f"{name}.weight", x.dims[-1])], {x.dims[-1]: 1}
        whole = (d.SEQUENCE,)
        saves = [x, statistics]
        ctx.build.elementwise(name, [x], normed, saves=saves, weights=weights, reduces=over, whole=whole)
        return ctx.build.elementwise(f"{name}_gate", [normed, gate], result, saves=[normed, gate], whole=whole)


def _eager_gated_norm(ctx: Context, name: str, x: Tensor, gate: Tensor, silu: bool) -> Tensor:
    """Append Transformers' RMSNormGated, one operator with the launches and traffic of an eager fp32 chain, and return
    the result. It saves an fp32 copy, the gate's activation, normed and scaled values, statistics and, for SiLU, the
    fp32 gate. With SiLU normed and scaled values are 16-bit (modeling_qwen3_next.py), with a sigmoid fp32
    (modeling_kimi_linear.py).
    """

    def kept(part: str, element: Element) -> Tensor:
        return Tensor(f"{name}.{part}", x.dims, element)

    middle = Element.ACTIVATION if silu else Element.FP32
    saves = [
        kept("fp32", Element.FP32),
        kept("gate_active", Element.FP32),
        kept("normed", middle),
        kept("scaled", middle),
    ]
    if silu:
        saves.append(kept("gate_fp32", Element.FP32))
    saves.append(Tensor(f"{name}.statistics", x.dims[:-1], Element.FP32))
    return ctx.build.elementwise(
        name,
        [x, gate],
        Tensor(name, x.dims),
        saves=saves,
        weights=[ctx.weight(f"{name}.weight", x.dims[-1])],
        # Passes over tensors of 16 and 32 bits, as multiples of reading both and writing the result, and what is kept.
        traffic=(2, Fraction(5, 2)),
        reduces={x.dims[-1]: 1},
        whole=(d.SEQUENCE,),
        launches=(8, 10),
    )


_ROWS = (d.BATCH, d.SEQUENCE)
MAMBA2 = "mamba2"
HEADS, HEAD_DIM, GROUPS, STATE = "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size"
KERNEL = "conv_kernel"
CONV_BIAS, PROJ_BIAS, OUT_BIAS, NORM = "conv_bias", "proj_bias", "out_proj_bias", "gated_norm"
MAMBA2_WIDTH, CHANNELS = "mamba_in_width", "mamba_conv_channels"

_SCAN_KERNELS = (6, 17)  # of mamba-ssm, that the host launches: chunk sums, states, their passing, C B', and the scan
# What Transformers makes of A_log: its exponential, and the negative of that, which the scan reads.
_RATES = tuple(Tensor(name, (HEADS,), Element.FP32) for name in ("decay_rate", "A"))


def mamba2(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append a Mamba-2 mixer and return y[B, S, D] from x[B, S, D]. Sizes and switches (biases, the norm by group) come
    from `ctx.model`; `kind` is not used. tp and cp split heads, and groups of heads that share B and C.

    x -> z, x, B, C, dt; a causal convolution over x, B, C; the scan; a gate and, with the switch gated_norm, a norm by
    group; a projection (Dao & Gu 2024, arXiv 2405.21060; Transformers' Mamba2Mixer, BambaMixer, FalconH1Mixer,
    NemotronHMamba2Mixer; Megatron-LM's core/ssm/mamba_mixer.py). The gate is inside the scan, except with that norm and
    `whole_scan`: there it is in the norm. With `whole_scan` the output projection keeps the scan's result in place of
    its input.

    The scan (section 6) has four products: inside a chunk C B' by group and (C B') x by head, then B' x into each
    chunk's state and C times the state before it. It keeps its inputs before the convolution, and its result before the
    gate; backward it convolves again, and makes C B' and the states again (mamba-ssm, MambaSplitConv1dScanCombinedFn).
    """
    has = ctx.model.mixer(MAMBA2).switches
    # Z, x, B, C and dt: one product, whose parts tp cuts each by itself (Megatron-LM's partition_sizes).
    parts = [
        Tensor("ssm_gate", (*_ROWS, HEADS, HEAD_DIM)),
        Tensor("ssm_x", (*_ROWS, HEADS, HEAD_DIM)),
        Tensor("ssm_b", (*_ROWS, GROUPS, STATE)),
        Tensor("ssm_c", (*_ROWS, GROUPS, STATE)),
        Tensor("ssm_dt", (*_ROWS, HEADS)),
    ]
    uses = [Use(part).renamed((part.dims[2], MAMBA2_WIDTH)) for part in parts]
    z, *mixed, dt = linear(ctx, "in_proj", x, (d.HIDDEN,), (MAMBA2_WIDTH,), uses, (PROJ_BIAS in has))
    convolved = convolution(ctx, "conv1d", mixed, CHANNELS, KERNEL, CONV_BIAS in has)
    whole = ctx.how.whole_scan
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
        products=tuple(_products()),
        scratch=tuple(_scratch(convolved, scanned)),
    )
    if NORM in has:
        result = _norm_of_groups(ctx, result if gated_inside else scanned, None if gated_inside else z)
    return to_stream(ctx, "out_proj", result, OUT_BIAS in has, keeps=scanned if whole else None)


def _products() -> list[Product]:
    """Return the matrix products inside the scan's kernels, each with its loops; of these the backward recomputes C B'
    (c_b) and the chunks' states (b_x).
    """
    inside = (*_ROWS, d.CHUNK)
    return [
        Product("c_b", (*inside, GROUPS, STATE), remade=1),
        Product("cb_x", (*inside, HEADS, HEAD_DIM)),
        Product("b_x", (*_ROWS, HEADS, HEAD_DIM, STATE), remade=1),
        Product("c_state", (*_ROWS, HEADS, HEAD_DIM, STATE)),
    ]


def _scratch(convolved: Sequence[Tensor], scanned: Tensor) -> list[Scratch]:
    """Return the tensors passed between the scan's kernels, as mamba-ssm launches them.

    Forward x, B and C are each read by two; the states are written in fp32, read, and passed on in 16 bits, which
    are written and read. Backward x, B and C are convolved again and read by six kernels (states, gate, dx, dB, d(C
    B'), decays) or five, the gradient of the scan's result is written without its gate and read by five; states and
    their gradients both go that way, C B' and its gradient are written once and read twice or once.
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


def _norm_of_groups(ctx: Context, x: Tensor, gate: Tensor | None) -> Tensor:
    """Append RMSNorm by group, with a gate unless that is None, and return the result; it saves what it reads, and
    statistics. With a gate, the backward recomputes the result, and the sequence is not split.
    """
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
        scratch=() if gate is None else (Scratch(out, (0, 1)),),
    )
    return out


def _mamba2_sizes(model: ModelDescriptor) -> dict[str, float]:
    given = model.mixer(MAMBA2).sizes
    inner, shared = given[HEADS] * given[HEAD_DIM], 2 * given[GROUPS] * given[STATE]
    return {CHANNELS: inner + shared, MAMBA2_WIDTH: 2 * inner + shared + given[HEADS]}


SHORT_CONV = "short_conv"
CONV_LENGTH = "conv_L_cache"
CONV_WIDTH, CONV_JOINED = "short_conv_width", "joined_short_conv_width"


def short_conv(ctx: Context, x: Tensor, kind: LayerKind) -> Tensor:
    """Append a gated short convolution (LFM2) and return y[B, S, D] from x[B, S, D]. Sizes come from `ctx.model`;
    `kind` is not used. The convolution needs the sequence undivided. C times the convolution of B times x, each a third
    of one projection; both products are element-wise kernels. The switch conv_bias gives projections and convolution a
    bias. Transformers' Lfm2ShortConv.
    """
    rows, bias = x.dims[:-1], CONV_BIAS in ctx.model.mixer(SHORT_CONV).switches
    before, behind, value = (Tensor(name, (*rows, CONV_WIDTH)) for name in ("conv_b", "conv_c", "conv_x"))
    uses = [Use(part).renamed((CONV_WIDTH, CONV_JOINED)) for part in (before, behind, value)]
    before, behind, value = linear(ctx, "in_proj", x, (d.HIDDEN,), (CONV_JOINED,), uses, bias)
    product, gated = (Tensor(name, value.dims) for name in ("conv_product", "conv_gated"))
    ctx.build.elementwise("conv_multiply", [before, value], product, saves=[before, value])
    (mixed,) = convolution(ctx, "conv", [product], CONV_WIDTH, CONV_LENGTH, bias)
    ctx.build.elementwise("conv_gating", [behind, mixed], gated, saves=[behind, mixed])
    return to_stream(ctx, "out_proj", gated, bias, aliases=("o_proj",))


PARTS = (
    Mixer(
        name=MAMBA2,
        build=mamba2,
        sizes=_mamba2_sizes,
        tensor_dims=(MAMBA2_WIDTH, CHANNELS, HEADS, GROUPS),
        exchanged_dims=(CHANNELS, HEADS, GROUPS),
        pieces=(HEADS, GROUPS),
        exchanged_pieces=(HEADS,),  # groups of which there are too few are repeated
        needs=(HEADS, HEAD_DIM, GROUPS, STATE, KERNEL, d.CHUNK),
        switches=(CONV_BIAS, PROJ_BIAS, OUT_BIAS, NORM),
        divides={HEADS: GROUPS},
    ),
    Mixer(
        name=SHORT_CONV,
        build=short_conv,
        sizes=lambda model: {CONV_WIDTH: model.hidden_size, CONV_JOINED: 3 * model.hidden_size},
        tensor_dims=(CONV_JOINED, CONV_WIDTH),
        pieces=(CONV_WIDTH,),
        needs=(CONV_LENGTH,),
        switches=(CONV_BIAS,),
    ),
)
