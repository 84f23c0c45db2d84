"""What flash attention's kernels do beside the products of queries with the keys that they attend to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.cost.framework import Framework
from symconfig.cost.kernels import TILE_KEYS
from symconfig.cost.lattice import Lattice
from symconfig.cost.machine import machine
from symconfig.cost.work import work_seconds
from symconfig.descriptor.load import load_cluster
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.derive import derive
from symconfig.graph.derived import Phase
from symconfig.graph.model import blocks
from symconfig.graph.scheme import Scheme
from tests.graph.support import numbers
from tests.sample_models import sample_model

TOKENS = 2**16
WINDOW = 128.0
EIGHT_BITS = replace(
    MEGATRON,
    implementation=replace(MEGATRON.implementation, attention=replace(MEGATRON.implementation.attention, in_fp8=True)),
)


def attention_s(
    block: str, phase: Phase, framework: Framework = MEGATRON, model: str = "gpt-oss-120b", precision: str = "mxfp8"
) -> float:
    """Of one layer on GB300, whose windows are 128 tokens."""
    made = sample_model(model)
    values = {**numbers(made, seq_length=TOKENS), "keys_full": TOKENS / 2, "keys_window": WINDOW}
    derived = derive(blocks(made, framework.implementation)[block], Scheme(False))
    rates = machine(load_cluster("gb300-nvl72"), precision)
    seconds = work_seconds(derived, Lattice(values, 1), rates, framework)
    return float(seconds["flash_attention", phase][0])


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.INPUT])
def test_a_sliding_window_costs_whole_tiles(phase: Phase) -> None:
    share = attention_s("moe_window", phase) / attention_s("moe", phase)
    assert share == pytest.approx((WINDOW + TILE_KEYS) / (TOKENS / 2 + TILE_KEYS), rel=0.02)
