"""The oracle itself against what is printed: papers' formulas, and parameters of ranks that Megatron Core built."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.oracle.given import ACTIVATION, DENSE, NODE, SEQUENCE, Model, Run
from tests.oracle.layer import layer
from tests.oracle.plan import plan, stages, states
from tests.oracle.seconds import ring
from tests.oracle.step import time

GPT_LIKE = Model("four h wide", 4, 3072, 24, 24, 128, 8192, 50_000)  # 3 h f = 8 h^2, as of two h x 4h matrices


def test_flops_of_a_layer() -> None:
    """Narayanan 2021, appendix: 24 B s h^2 + 4 B s^2 h forward, thrice that in both passes. Flash attention computes
    half the scores, and five products backward where the paper has four."""
    model, flops = GPT_LIKE, dict.fromkeys(("products", "attention"), 0.0)
    for op in layer(model, Run()).operators:
        flops["attention" if op.name == "flash_attention" else "products"] += sum(op.flops.values())
    assert flops["products"] == 3 * 24 * SEQUENCE * model.hidden**2
    assert flops["attention"] == 4 * SEQUENCE**2 * model.hidden / 2 * (1 + 5 / 2)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_bytes_kept_by_a_layer(tp: int) -> None:
    """Korthikanti 2022, table 2, for this layer: of the stream four tensors of 2 bytes are kept (inputs of two norms
    and of two column-parallel products), of heads q, k, v and the result, of the MLP gate, up and their product; all
    cut by t with sequence parallelism. Beside them statistics in fp32."""
    model, run = GPT_LIKE, Run(tp=tp, sp=tp > 1)
    n, h, f = SEQUENCE, model.hidden, model.width
    kept = sum(tensor.size for tensor in layer(model, run).tensors)
    statistics = n * (2 + model.heads) * 4 / tp
    assert kept == pytest.approx(n * (4 * h + 4 * h + 3 * f) * ACTIVATION / tp + statistics)


@pytest.mark.parametrize("tp", [2, 8])
def test_sequence_parallelism_moves_what_the_all_reduces_did(tp: int) -> None:
    """Korthikanti 2022, section 4.2.2: a ring's all-reduce is a reduce-scatter and an all-gather; only the gather for
    the weights' gradients comes on top, twice a layer."""

    def volume(sp: bool) -> float:
        messages = layer(GPT_LIKE, Run(tp=tp, sp=sp)).messages
        return sum(m.moved * (2 if m.kind == "all-reduce" else 1) for m in messages if m.axis == "tp")

    assert volume(True) - volume(False) == 2 * SEQUENCE * GPT_LIKE.hidden * ACTIVATION


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_states_of_the_distributed_optimizer(ranks: int) -> None:
    """Megatron Core's table: 18 bytes a parameter without it, 6 + 12 / d with it; ZeRO 2 and 3 cut further."""
    stage = replace(stages(plan(DENSE, Run()))[0], dense=1.0, expert=0.0, largest=0.0)
    total = [sum(states(stage, Run(dp=ranks, zero=zero)).values()) for zero in range(4)]
    assert total == pytest.approx([18, 6 + 12 / ranks, 2 + 16 / ranks, 18 / ranks])


@pytest.mark.parametrize(("p", "v"), [(2, 1), (4, 1), (4, 2), (2, 4)])
def test_the_bubble_where_all_stages_are_alike(p: int, v: int) -> None:
    """Narayanan 2021, section 2.2: (p - 1) / (v m) of the ideal time, but for the ends and the messages."""
    model, m = replace(DENSE, vocabulary=1, layers=64, hidden=4096, width=11264), 8
    got = time(plan(model, Run(pp=p, vpp=v, microbatches=m)))
    ideal = got["passes"] + got["pipeline send/receive"]
    assert got["pipeline bubble"] / ideal == pytest.approx((p - 1) / (v * m), rel=0.02)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_inside_a_node(ranks: int) -> None:
    """2 (n - 1) / n of the buffer for an all-reduce, half for the others (NCCL's busbw), latency apart."""
    large = 1e12
    for passes in (1, 2):
        wanted = passes * (ranks - 1) / ranks * large / (300e9 * 0.8)
        assert ring(large, ranks, 1, passes) == pytest.approx(wanted, rel=1e-3)


def test_a_ring_over_nodes_uses_every_link_of_a_node() -> None:
    """Two whole nodes cross the network with eight links at once, ranks that are a node apart with one each."""
    large = 1e12
    assert ring(large, 2 * NODE, 1) == pytest.approx(15 / 16 * large / (8 * 25e9 * 0.8), rel=1e-3)
    assert ring(large, 2, NODE) == pytest.approx(1 / 2 * large / (25e9 * 0.8), rel=1e-3)


# Parameters of the first and the last rank as megatron-core 0.16.1 built them.
LLAMA_70B = Model("Llama-3-70B", 80, 8192, 64, 8, 128, 28672, 128_256)
LLAMA_405B = Model("Llama-3.1-405B", 126, 16384, 128, 8, 128, 53248, 128_256)
MIXTRAL = Model("Mixtral-8x7B", 32, 4096, 32, 8, 128, 14336, 32_000, experts=8, chosen=2)
BUILT = [
    (LLAMA_70B, Run(tp=8, sp=True, pp=4), 20, (2_271_543_296, 2_271_551_488)),
    (LLAMA_405B, Run(tp=8, sp=True), 7, (3_053_682_688, 3_053_699_072)),  # of 16 stages, ends in chunks of their own
    (MIXTRAL, Run(tp=2, sp=True, pp=4, ep=8, dp=4), 8, (1_642_921_984, 1_642_926_080)),
]


@pytest.mark.parametrize(("model", "run", "layers", "built"), BUILT, ids=[case[0].name for case in BUILT])
def test_parameters_of_a_rank(model: Model, run: Run, layers: int, built: tuple[int, int]) -> None:
    first, body, last = (block.dense + block.expert for block in plan(model, run).blocks)
    assert (first + layers * body, layers * body + last) == built
