"""Groups of ranks that each have all parts of the weights: what a search of them finds, against all of them by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import symconfig
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.plans.plan import Candidate, Plan
from symconfig.solve.predict import predict
from symconfig.solve.prospect import Setup
from symconfig.solve.run import usual_of

# A model that is small beside the network of so many GPUs, and one that barely fits in the shards of a node.
JOBS = [("llama3.1-8b", 2048, 2048), ("llama3.1-8b", 16, 64), ("llama3.1-70b", 1024, 1024)]


def planned(model: str, gpus: int, batch: int, **pins: str) -> Plan:
    done = symconfig.plan(model, "h100", gpus, global_batch_size=batch, seq_length=4096, backend="fsdp", pins=pins)
    return done.plan


def step_s(plan: Plan, one: Candidate, groups: int) -> tuple[float, float]:
    """Seconds and bytes of the same candidate with so many groups."""
    framework = replace(usual_of(plan.cluster, plan.job), optimizer_instances=groups)
    found = predict(load_model(plan.model.name), load_cluster("h100"), Setup.of(one, framework)).predicted
    return found.step_s, found.device_bytes


@pytest.mark.parametrize(("model", "gpus", "batch"), JOBS)
def test_no_number_of_groups_is_faster_than_the_fastest_plan(model: str, gpus: int, batch: int) -> None:
    plan = planned(model, gpus, batch)
    fastest = plan.fastest
    assert step_s(plan, fastest, fastest.configuration.instances)[0] == pytest.approx(fastest.predicted.step_s)
    groups = [2**power for power in range(gpus.bit_length() - 1)]
    every = {count: step_s(plan, fastest, count) for count in groups}
    usable = plan.usable_bytes
    least = min(seconds for seconds, held in every.values() if held <= usable)
    assert fastest.predicted.step_s <= least * (1 + 1e-9)
    # What is chosen wins by more than the model is sure of, or is the plainest.
    best = plan.best.configuration.instances
    assert best == 1 or every[1][0] > 1.015 * least
    if gpus > 1000:
        assert best > 1


def test_several_groups_keep_more_and_say_so() -> None:
    one, four = (planned("llama3.1-8b", 64, 512, instances=count, mbs="1").best for count in ("1", "4"))
    parts = [each.predicted.memory["optimizer state"] for each in (one, four)]
    assert parts[1] == pytest.approx(4 * parts[0])
    assert (one.shard_ranks, four.shard_ranks) == (None, 16)
