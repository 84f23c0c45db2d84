"""The degree search and the tensor solver have nothing in common but kernels' and links' formulas: one derives blocks
under a scheme and simulates a step, the other sums rows of nodes and pairs. On Megatron's own strategy they must agree.
"""

from __future__ import annotations

import numpy as np
import pytest

import symconfig
from symconfig.cost.partition.costs import Keep
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.mesh import of_cluster
from symconfig.graph.program.of_model import program
from symconfig.solve.partition.problem import assemble
from symconfig.solve.partition.run import Ask, cases, costs_of
from tests.solve.naive import KERNELS
from tests.solve.partition.strategies import named_rows, way

SEQ = 4096
# What one of them has and the other has not: overlap of tensor parallelism with weight gradients, the buckets of
# gradients, workspaces, what a framework does once a step.
TIME, MEMORY = 0.10, 0.09


@pytest.mark.parametrize(
    ("model", "cluster", "gpus", "batch", "tp", "cp", "ep"),
    [
        ("llama3.1-8b", "mi300x", 8, 32, 2, 1, 1),  # nodes without a switch
        ("llama3.1-8b", "h100", 16, 32, 2, 2, 1),
        ("mixtral-8x7b", "h100", 64, 128, 2, 1, 8),
        ("qwen3-30b-a3b", "h100", 64, 256, 1, 1, 8),  # fewer: latency of each gradient; more: hosts
    ],
)
def test_megatrons_strategy_costs_in_both_nearly_the_same(
    model: str, cluster: str, gpus: int, batch: int, tp: int, cp: int, ep: int
) -> None:
    pins = {"tp": tp, "cp": cp, "ep": ep, "etp": 1, "pp": 1, "mbs": 1, "zero": 1, "recompute": "none"}
    offload = {"activation_offload": 0, "optimizer_offload": 0}
    planned = symconfig.plan(
        model=model, cluster=cluster, gpus=gpus, global_batch_size=batch, seq_length=SEQ,
        pins={name: str(value) for name, value in (pins | offload).items()}, without=KERNELS,
    ).best  # fmt: skip
    sequence = planned.configuration.sequence_parallel
    descriptor, dp = load_model(model), gpus // (tp * cp)
    ask = Ask(of_cluster(load_cluster(cluster), gpus), load_cluster(cluster), 1e15, turns=(batch // dp,),
              keeps=(Keep.SHARDS,))  # fmt: skip
    case = next(cases(lambda turns: program(descriptor, batch // turns, SEQ), ask))
    axes = ask.mesh.axes()
    planned_s = planned.predicted.balanced_step_s or planned.predicted.step_s  # a partition's experts have equal loads
    degrees = way(tp=tp, cp=cp, dp=dp, ep=ep, sequence_parallel=sequence, zero=1)
    rows = named_rows(case.net, axes, "megatron-tp", degrees)
    assert rows is not None
    costs = costs_of(case, ask, axes)
    problem = assemble(costs, [np.array([row]) for row in rows], ask.memory_limit)
    alone = (0,) * len(problem.nodes)
    assert problem.cost(alone) == pytest.approx(planned_s, rel=TIME)
    assert problem.memory(alone) == pytest.approx(planned.predicted.peak_bytes, rel=MEMORY)
