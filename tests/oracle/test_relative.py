"""The source paper's relative cost counts elements on the wire: an all-reduce passes twice over its buffer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.oracle.ends import rows
from tests.oracle.given import DENSE, MIXTURE, Model, Run
from tests.oracle.judged import relative_communication, relative_costs
from tests.oracle.plan import plan, shards
from tests.oracle.records import Block

RANKS = {"tp": lambda run: run.tp, "cp": lambda run: run.cp, "ep": lambda run: run.ep, "etp": lambda run: run.etp}
CASES = [
    (DENSE, Run(tp=4)),  # all-reduces only
    (DENSE, Run(tp=4, sp=True)),
    (DENSE, Run(tp=2, cp=4)),
    (DENSE, Run(tp=2, sp=True, cp=2, ulysses=True)),
    (MIXTURE, Run(tp=2, sp=True, ep=4, etp=2, dp=4, imbalance=1.25)),
]


def moved(run: Run, block: Block) -> float:
    result = 0.0
    for m in block.messages:
        ranks, passes = RANKS[m.axis](run), 2 if m.kind == "all-reduce" else 1
        result += passes * (ranks - 1) / ranks * m.elements
    return result


@pytest.mark.parametrize(("model", "run"), CASES)
def test_elements_that_a_block_moves(model: Model, run: Run) -> None:
    for block in plan(model, run).blocks:
        assert relative_communication(model, run, block.name) == pytest.approx(moved(run, block)), block.name


def test_a_layer_without_sequence_parallelism() -> None:
    """Two all-reduces each way (Narayanan 2021, section 3.2: 4 n b s h (t - 1) / t each way with both passes' halves):
    8 b s h (t - 1) / t elements in all."""
    elements = 4096 * DENSE.hidden * 3 / 4
    assert relative_communication(DENSE, Run(tp=4), "dense") == pytest.approx(8 * elements)


def spreads(model: Model, run: Run) -> tuple[list[float], list[float]]:
    """Of embedding, layer and head of a dense model: sums over tensors of their dims' sizes on a rank, of activations
    and of weights."""
    h, d, t, v = model.hidden, model.channels, run.tp, rows(model, run)
    width, heads, keys = model.width / t, model.heads / t, model.kv_heads / t
    whole, stream = (run.micro + tokens / run.micro for tokens in (run.tokens, run.stream))  # batch and sequence
    ahead = 4 * (stream + h)  # two norms and two sums
    attended = 3 * (whole + heads + d) + 3 * (whole + keys + d)  # q, k, v, both turned, the result
    layer = ahead + attended + 2 * (whole + h) + 3 * (whole + width)
    fused = (model.heads + 2 * model.kv_heads) * d / t
    weights = 2 * h + (h + fused) + (heads + d + h) + (h + 2 * width) + (width + h)
    return [whole + h, layer, stream + h + 2 * (whole + v) + whole], [v + h, weights, h + (h + v)]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "run",
    [Run(), Run(tp=4, sp=True, dp=2, cp=2, micro=2, microbatches=3), Run(tp=2, pp=2, vpp=2, dp=4, microbatches=4)],
)
def test_a_whole_plan(run: Run, zero: int) -> None:
    """Layers are spread over the stages; data parallelism passes twice over the parameters in a step, with ZeRO 2 over
    the gradients with every microbatch, with ZeRO 3 thrice with every microbatch; stages send an activation and a
    gradient of each chunk."""
    run, model = replace(run, zero=zero), DENSE
    every = plan(model, run).blocks
    counts = [count / run.pp for count in (1, model.layers, 1)]
    activations, weights = spreads(model, run)
    over, _ = shards(run)
    memory = sum(
        count * (run.microbatches * one + two / (over if zero == 3 else 1))
        for count, one, two in zip(counts, activations, weights, strict=True)
    )
    parameters = sum(count * block.dense for count, block in zip(counts, every, strict=True))
    inside = run.microbatches * sum(count * moved(run, block) for count, block in zip(counts, every, strict=True))
    passes = {0: 2, 1: 2, 2: run.microbatches + 1, 3: 3 * run.microbatches}[zero]
    data = passes * (over - 1) / over * parameters
    sent = 2 * run.microbatches * run.vpp * run.stream * model.hidden if run.pp > 1 else 0.0
    assert relative_costs(model, run) == pytest.approx((memory, inside + data + sent))
