"""The adaptive solver held against the exact one on models of the zoo; what a strategy for each layer would gain."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest

from symconfig.api.partition_job import partition_job
from symconfig.cost.partition.costs import Keep, Objective
from symconfig.cost.partition.kept import floor_bytes
from symconfig.descriptor.load import load_model
from symconfig.graph.program.net import net
from symconfig.resources import data_dir
from symconfig.solve.partition import exact, run
from symconfig.solve.partition.adaptive import adaptive
from symconfig.solve.partition.problem import assemble
from symconfig.solve.partition.rows import spaces
from tests.sampled import sampled
from tests.solve.partition.optima import NODE, model, of, weights

# All of them are in docs/evidence/partitions.md.
MODELS = sampled(sorted(path.stem for path in (data_dir("model_zoo") / "models").glob("*.yaml")), 10)
AXES = NODE.axes()
MEDIAN, WORST = 1.05, 1.15
# Of the exact solver, seconds of the processor. Where it does not end, its bound counts, which is the lower the less it
# has; where nothing was found it must prove that there is nothing.
LIMIT_S, PROOF_S = 1.0, 2.0


def ratio(name: str, objective: Objective, room: float) -> float:
    """Cost of the adaptive solver's answer over a lower bound of every answer's. 1 where neither finds any.

    room: memory limit over what no strategy can go below.
    """
    costs = weights(of(model(name), 1, 4096), AXES, objective=objective, keep=Keep.SHARDS)
    limit = floor_bytes(costs, NODE.gpus) * room
    found = adaptive(costs, AXES, limit).best
    costs = replace(costs, gamma=found.gamma if found is not None else np.inf)
    rows = spaces(costs, AXES)
    assert rows is not None
    answer = exact.solve(assemble(costs, rows, limit), limit_s=LIMIT_S if found is not None else PROOF_S)
    if found is None:
        assert (answer.choice, answer.optimal) == (None, True), name
        return 1.0
    assert found.memory <= limit
    return found.cost / min(answer.bound, found.cost)


@pytest.mark.parametrize(
    ("objective", "room"), [(Objective.TIME, 1.15), (Objective.SYMTENSOR, np.inf)], ids=["time", "symtensor"]
)
def test_adaptive_is_close_to_the_optimum_on_every_model(objective: Objective, room: float) -> None:
    """One sequence for the node, so that no split of the batch is at hand; seconds within a tight memory limit, and the
    source paper's relative cost without one."""
    ratios = {name: ratio(name, objective, room) for name in MODELS}
    assert statistics.median(ratios.values()) <= MEDIAN, ratios
    assert max(ratios.values()) <= WORST, ratios
    assert max(ratios.values()) > 1.0  # else it says nothing


ROOMS = [("rtx4090", 0.93), ("rtx4090", 0.87), ("rtx4090", 0.84), ("h100", 0.9), ("h100", 0.8)]


@pytest.mark.parametrize(("cluster", "room"), sampled(ROOMS, 3))
def test_a_strategy_for_each_layer_gains_little(monkeypatch: pytest.MonkeyPatch, cluster: str, room: float) -> None:
    """Four layers of llama2-7b on four GPUs, with `room` of the memory that the fastest partition takes: seconds with
    one strategy for all layers, over the proved bound with one for each."""
    model = load_model("llama2-7b").model_copy(update={"num_hidden_layers": 4})
    job = partition_job(
        {"model": model, "cluster": cluster, "gpus": 4, "global_batch_size": 4, "seq_length": 4096,
         "num_microbatches": 1, "recompute": "none", "solver": "exact"}
    )  # fmt: skip
    free = run.partition(job.source.programs, job.ask)
    ask = replace(job.ask, keeps=(free.costs.training.keep,), memory_limit=room * free.memory)
    alike = run.partition(job.source.programs, ask)
    monkeypatch.setattr(run, "net_of", lambda programs, turns: net(programs(turns)))
    each = run.partition(job.source.programs, ask)
    assert len(each.rows) > 2 * len(alike.rows)
    assert each.bound > 0
    assert alike.cost <= (1.005 if cluster == "h100" else 1.035) * each.bound
