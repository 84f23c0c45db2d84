"""Model FLOPs as a source counts them: turns its TFLOP/s back into seconds.

Sources count matmuls alike (a multiply-add is 2; forward and backward) and differ in attention and in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from symconfig.cost.work import block_flops
from symconfig.descriptor.measurements import Row
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import Strict
from symconfig.graph.block import LAYER
from symconfig.graph.derived import Phase
from symconfig.graph.implementation import Implementation
from symconfig.graph.model import derived, dim_sizes, keys, sequence, visible
from symconfig.graph.scheme import Scheme
from symconfig.solve.configuration import Setup


class Counting(Strict):
    """One source's way of counting FLOP.

    causal: attention's products by the half that the mask leaves, or full. vocabulary: how many matrices of
    vocabulary x hidden size count (the head; some count the embedding's look-up as another).
    peak_tflops: what MFU is relative to; None: the GPU's dense peak at the row's precision.
    """

    causal: Literal["half", "full"] = "half"
    vocabulary: Literal[0, 1, 2] = 1
    peak_tflops: float | None = None


COUNTING = Counting()  # symconfig's own way, for sources of which nothing is known


def flops_per_token(
    model: ModelDescriptor, seq_length: int, counting: Counting, repeated: Collection[str] = ()
) -> float:
    """Return the FLOP of one token, forward and backward, as the source counts attention's mask and vocabulary
    matrices. repeated: modules whose recomputed forward also counts: with LAYER each layer's whole forward, with any
    others that of attention's products alone; empty: none.
    """
    blocks, kinds = derived(model, Implementation(), Scheme(False)), sequence(model)
    plain = dim_sizes(model) | {"seq_length": float(seq_length)}
    attended = keys(model, seq_length) if counting.causal == "half" else visible(model, seq_length)
    numbers = plain | attended
    flops = block_flops(blocks, numbers)
    if repeated:
        once = block_flops(blocks, numbers, (Phase.FORWARD,))
        no_attention = block_flops(blocks, plain | dict.fromkeys(attended, 0.0), (Phase.FORWARD,))
        for kind in set(model.layer_kinds):
            flops[kind] += once[kind] - (0.0 if LAYER in repeated else no_attention[kind])
    matrix = 6 * model.hidden_size * model.vocab_size * seq_length
    total = sum(flops[kind] for kind in kinds) + (counting.vocabulary - 1) * matrix
    return total / seq_length


def tokens_per_s_per_gpu(
    row: Row, model: ModelDescriptor, c: Setup, peak_flops: float, counting: Counting
) -> tuple[str, float] | None:
    """Return (name, tokens/s per GPU) of the first figure that the row states and that is not 0; None if it states
    none.

    Order: TFLOP/s (measured, then derived), MFU (measured, else derived), hardware TFLOP/s, HFU; the last two also
    count recomputed modules. peak_flops: FLOP/s that MFU and HFU are relative to, unless the source's counting has its
    own.
    """
    measured, computed = row.measured, row.derived
    peak = counting.peak_tflops * 1e12 if counting.peak_tflops else peak_flops
    recomputed = {LAYER} if c.recompute == "full" else c.recompute_modules
    stated = (
        ("tflops_per_gpu", measured.tflops_per_gpu, 1e12, ()),
        ("tflops_per_gpu", computed.tflops_per_gpu, 1e12, ()),
        ("mfu", measured.mfu or computed.mfu, peak, ()),
        ("hardware_tflops_per_gpu", measured.hardware_tflops_per_gpu, 1e12, recomputed),
        ("hfu", measured.hfu, peak, recomputed),
    )
    for name, value, unit, repeated in stated:
        if value:
            return name, value * unit / flops_per_token(model, c.seq_length, counting, repeated)
    return None
