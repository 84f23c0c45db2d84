"""What another strategy for each layer would gain (Galvatron), which no framework has an option for: a bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.api.partition_job import partition_job
from symconfig.descriptor.load import load_model
from symconfig.graph.program.net import net
from symconfig.solve.partition import run

ROOMS = [("rtx4090", 0.93), ("rtx4090", 0.87), ("rtx4090", 0.84), ("h100", 0.9), ("h100", 0.8)]


@pytest.mark.parametrize(("cluster", "room"), ROOMS)
def test_a_strategy_for_each_layer_gains_little(monkeypatch: pytest.MonkeyPatch, cluster: str, room: float) -> None:
    """Four layers of llama2-7b on four GPUs, with `room` of the memory that the fastest partition takes: seconds with
    one strategy for all layers, over the proved bound with one for each."""
    model = load_model("llama2-7b").model_copy(update={"num_hidden_layers": 4})
    job = partition_job(
        {"model": model, "cluster": cluster, "gpus": 4, "global_batch_size": 4, "seq_length": 4096,
         "num_microbatches": 1, "recompute": "none", "solver": "exact"}
    )  # fmt: skip
    free = run.partition(job.source.programs, job.ask)
    assert free is not None
    ask = replace(job.ask, keeps=(free.costs.training.keep,), memory_limit=room * free.memory)
    alike = run.partition(job.source.programs, ask)
    monkeypatch.setattr(run, "net_of", lambda programs, turns: net(programs(turns)))
    each = run.partition(job.source.programs, ask)
    assert alike is not None
    assert each is not None
    assert len(each.rows) > 2 * len(alike.rows)
    assert each.bound > 0
    assert alike.cost <= (1.005 if cluster == "h100" else 1.035) * each.bound
