"""What tensor and context parallelism exchange around scans, by the derived rule, and what each rank then holds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from symconfig.graph.derive import derive
from symconfig.graph.derived import DerivedBlock, Phase
from symconfig.graph.model import blocks, mixer_pieces
from tests.graph.blocks.modules import CASES, DELTA, HIDDEN, MAMBA2, Case
from tests.graph.support import PLAIN, SEQUENCE, kept, numbers

KINDS = ["mamba2", "qwen3 next", "kimi", "lfm2"]
OUT = "attention_out"


def built(case: Case, sequence: bool = True) -> DerivedBlock:
    """As Megatron-LM's modules compute it."""
    (block,) = (block for kind, block in blocks(case.descriptor).items() if case.block in kind)
    return derive(block, SEQUENCE if sequence else PLAIN)


def moved(block: DerivedBlock, axis: str, phase: Phase = Phase.FORWARD) -> Mapping[str, str]:
    return {c.tensor: str(c.kind) for c in block.collectives if axis in c.axes and c.phase is phase}


@pytest.mark.parametrize("name", KINDS)
def test_each_block_is_left_by_one_reduction(name: str) -> None:
    """As Megatron-LM's row-parallel output projection: a reduce-scatter with sequence parallelism, else an
    all-reduce."""
    with_sequence, without = (moved(built(CASES[name], sequence), "tp") for sequence in (True, False))
    assert (with_sequence["input_norm"], with_sequence[OUT]) == ("all-gather", "reduce-scatter")
    assert without[OUT] == "all-reduce"
    assert set(without) <= {OUT, "mlp_out"}


def test_context_parallel_ranks_exchange_heads_for_the_sequence() -> None:
    """MambaContextParallel.pre_conv_ssm sends z, x, B, C and dt, post_conv_ssm the result; GatedDeltaNet sends q, k, v,
    z, b, a and, behind its norm, the result."""
    mamba = moved(built(CASES["mamba2"]), "cp")
    assert set(mamba) == {"ssm_gate", "ssm_x", "ssm_b", "ssm_c", "ssm_dt", "scan_gated"}
    delta = moved(built(CASES["qwen3 next"]), "cp")
    assert set(delta) == {"delta_q", "delta_k", "delta_v", "delta_z", "delta_b", "delta_a", "out_norm"}
    assert set(mamba.values()) == set(delta.values()) == {"all-to-all"}
    for name in ("mamba2", "qwen3 next"):
        assert moved(built(CASES[name]), "cp") == moved(built(CASES[name]), "cp", Phase.INPUT)


def test_what_is_exchanged_is_what_the_input_projection_gave() -> None:
    """Elements on a rank: [S / cp, all of in_proj's output / tp] there, [S / cp, H P / tp] back."""
    block, degrees = built(CASES["mamba2"]), {"tp": 2, "cp": 2}
    values = numbers(CASES["mamba2"].descriptor, seq_length=512, **degrees)
    inner, shared = MAMBA2["mamba_num_heads"] * MAMBA2["mamba_head_dim"], 2 * MAMBA2["n_groups"] * 32
    sent = [c for c in block.collectives if c.axes == ("cp",) and c.phase is Phase.FORWARD]
    width = 2 * inner + shared + MAMBA2["mamba_num_heads"] + inner
    assert sum(c.elements.value(values) for c in sent) == 512 / 2 * width / 2


def test_blocks_that_no_framework_exchanges_gather_the_sequence() -> None:
    assert moved(built(CASES["lfm2"]), "cp") == {"conv_product": "all-gather"}


def test_context_parallel_ranks_hold_whole_weights_and_sum_their_gradients() -> None:
    """Every rank has all of a tensor-parallel rank's convolution, and uses the channels of its own heads."""
    block = built(CASES["mamba2"])
    values = numbers(CASES["mamba2"].descriptor, tp=2, cp=2)
    shards = {weight.name: weight for weight in block.weights}
    channels = MAMBA2["mamba_num_heads"] * MAMBA2["mamba_head_dim"] + 2 * MAMBA2["n_groups"] * 32
    for name, whole in (("conv1d.weight", 4 * channels), ("A_log", 8), ("in_proj.weight", HIDDEN * (channels + 520))):
        assert shards[name].elements.value(values) == whole / 2
        assert set(shards[name].data_axes) == {"dp", "cp"}


def test_the_work_of_a_scan_is_split_over_heads() -> None:
    block = built(CASES["mamba2"])
    whole = numbers(CASES["mamba2"].descriptor)
    scan = next(work for work in block.work if work.op == "scan" and work.phase is Phase.FORWARD)
    for degrees in ({"tp": 2}, {"cp": 2}):
        part = whole | degrees
        for size, _ in scan.products:  # type: ignore[union-attr]
            assert size.value(part) == size.value(whole) / 2


def test_heads_and_groups_say_over_how_many_ranks_a_block_divides() -> None:
    pieces = {name: mixer_pieces(CASES[name].descriptor) for name in KINDS}
    assert pieces["mamba2"] == MAMBA2["n_groups"]
    assert pieces["qwen3 next"] == DELTA["linear_num_key_heads"]
    assert pieces["lfm2"] == HIDDEN
    exchanged = {name: mixer_pieces(CASES[name].descriptor, exchanged=True) for name in KINDS}
    assert exchanged == {"mamba2": 8, "qwen3 next": 2, "kimi": 4, "lfm2": 0}


def test_recompute_of_the_gated_norm_keeps_nothing_of_it() -> None:
    """Megatron-LM's --recompute-modules gdn_norm_out throws the norm's output away."""
    block = built(CASES["qwen3 next"])
    assert kept(block) - kept(block, "gdn_norm_out") == {"out_norm", "out_norm.normed", "out_norm.statistics"}
