"""What hides behind what: user buffers, interleaved sends and reductions; and what a ring and low precision add."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.cost.formulas import CONTENTION
from symconfig.cost.weights import WEIGHTS
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.frameworks.megatron.behaviour import USER_BUFFERS
from symconfig.graph.derived import Phase
from symconfig.graph.layout import Kind
from tests.cost.support import cost, seconds

MODEL = load_model("llama3.1-8b")
H100 = load_cluster("h100")


def test_a_gather_before_a_product_is_cut_up_with_it_and_a_reduction_beside_another_is_not() -> None:
    """Backward of a row-parallel layer: the output's gradient is gathered for the input's gradient that needs it."""
    layer = next(block for block in cost(MODEL, tp=4, cluster=H100).table.blocks if block.derived.name == "dense")
    backward = [c for c in layer.derived.collectives if c.phase is not Phase.FORWARD and c.axes == ("tp",)]
    needs = {c.behind: c.kind for c in backward if c.chunked}
    assert needs == {("o_proj", Phase.INPUT): Kind.ALL_GATHER, ("down_proj", Phase.INPUT): Kind.ALL_GATHER}
    assert {c.kind for c in backward if c.behind and c.behind[1] is Phase.WEIGHT} == {Kind.REDUCE_SCATTER}


@pytest.mark.parametrize(("precision", "gathered"), [("bf16", 2.0), ("fp8", 1.0)])
def test_user_buffers_take_eight_gathered_streams_and_four_in_16_bits(precision: str, gathered: float) -> None:
    asked: dict[str, Any] = {"tp": 4, "cluster": H100, "precision": precision, "seq_length": 4096}
    kept = [
        float(
            next(block for block in found.table.blocks if block.derived.name == "dense").weights[
                WEIGHTS.index("workspaces"), 0
            ]
        )
        for found in (cost(MODEL, **asked, overlap=USER_BUFFERS), cost(MODEL, **asked))
    ]
    assert kept[0] - kept[1] == pytest.approx((8 * gathered + 4 * 2.0) * 4096 * MODEL.hidden_size)


def test_user_buffers_leave_one_piece_of_four() -> None:
    shown = cost(MODEL, tp=4, cluster=H100, seq_length=8192, overlap=USER_BUFFERS)
    layer = next(block for block in shown.table.blocks if block.derived.name == "dense")
    shares = sorted(
        (float(left[0] / full[0]), c.behind[0])
        for c, left, full in zip(layer.derived.collectives, layer.comm_s, layer.full_comm_s, strict=True)
        if c.axes == ("tp",) and c.behind
    )
    assert len(shares) == 10  # four forward; four of gradients and two gathers of what the forward gathered
    assert [share for share, _ in shares[:-2]] == pytest.approx([0.25] * 8)
    # The smallest product does not cover its collectives.
    assert all(0.25 < share < 0.5 and op == "o_proj" for share, op in shares[-2:])


def test_user_buffers_slow_the_products_that_they_cut() -> None:
    plain, cut = (cost(MODEL, tp=4, cluster=H100, overlap=how) for how in ({}, USER_BUFFERS))
    assert seconds(cut)["compute"] > seconds(plain)["compute"]
    assert seconds(cut)["layer communication"] < seconds(plain)["layer communication"]
    alone = (cost(MODEL, cluster=H100, overlap=how) for how in ({}, USER_BUFFERS))
    assert len({seconds(parts)["compute"] for parts in alone}) == 1


def test_sends_hide_only_where_chunks_interleave() -> None:
    def shown(vpp: int, hide: float) -> float:
        parts = cost(MODEL, pp=16, vpp=vpp, microbatches=32, cluster=H100, overlap={"pp": hide})
        return seconds(parts)["pipeline send/receive"]

    assert shown(1, 0.8) == shown(1, 0.0) > 0
    assert shown(2, 0.8) == 0 < shown(2, 0.0)


def test_a_reduction_hides_behind_the_chunks_that_end_later() -> None:
    def shown(vpp: int) -> float:
        # Short microbatches: one alone hides too little.
        parts = cost(MODEL, pp=8, vpp=vpp, dp=64, microbatches=16, zero=1, cluster=H100, seq_length=512)
        return seconds(parts)["data-parallel communication"]

    assert shown(4) < shown(1)


def test_the_operands_of_a_weight_gradient_are_copied_for_fp8() -> None:
    def gradients(precision: str) -> dict[str, float]:
        parts = cost(MODEL, cluster=H100, precision=precision)
        layer = next(block for block in parts.table.blocks if block.derived.name == "dense")
        return {op: float(t[0]) for (op, phase), t in layer.work_s.items() if phase is Phase.WEIGHT}

    wide, low = gradients("bf16"), gradients("fp8")
    assert set(wide) == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    # Twice the peak does not halve it.
    assert all(wide[op] / 2 < low[op] < wide[op] for op in wide)


def test_a_hidden_reduction_slows_the_backward_that_hides_it() -> None:
    """Of ZeRO 1: one reduction a step beside the last backward, one gather beside the first forward."""
    part = "data-parallel communication"
    shown, hidden = (
        float(cost(MODEL, dp=8, cluster=H100, seq_length=8192, zero=1, overlap={"data": share}).cost.time[part].max())
        for share in (0.0, 1.0)
    )
    assert hidden == pytest.approx(CONTENTION * shown, rel=0.01)
