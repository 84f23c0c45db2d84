"""What an uncertain constant does to a step, against a cluster whose file says the other value."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import Any

import pytest

from symconfig import plan
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.plans.plan import Plan
from symconfig.solve.costed import costed
from symconfig.solve.restore import restore
from symconfig.solve.sensitivity import Sensitivity, sensitivities


def _changed(cluster: ClusterDescriptor, name: str, factor: float) -> ClusterDescriptor:
    """Write the cluster's file with one number scaled."""
    data: dict[str, Any] = cluster.model_dump(by_alias=True)
    where, _, field = name.rpartition(".")
    levels = {level["name"]: level for level in data["levels"]}
    held = data["kernels"] if not where else data["host"] if where == "host" else levels[where]
    held[field]["value"] *= factor
    return ClusterDescriptor.model_validate(data)


def _step_s(made: Plan, cluster: ClusterDescriptor) -> float:
    found = restore(replace(made, cluster=cluster), made.best)
    return float(costed(found).cost.step_s.ravel()[0])


def _sensitive(**job: Any) -> tuple[Plan, dict[str, Sensitivity]]:
    made = plan(**job).plan
    return made, {one.name: one for one in sensitivities(restore(made, made.best), made.cluster)}


@pytest.mark.parametrize(
    ("job", "links"),
    [
        (
            {"model": "mixtral-8x7b", "cluster": "h100", "gpus": 64, "global_batch_size": 64, "pins": {"tp": "16"}},
            {"rail.latency_s", "nvlink.latency_s"},
        ),
        (
            {"model": "llama2-7b", "cluster": "a100-80gb-pcie", "gpus": 16, "global_batch_size": 64},
            {"spine.bandwidth_bytes_per_s", "pcie.bandwidth_bytes_per_s"},
        ),
        (
            {"model": "llama2-13b", "cluster": "rtx4090", "gpus": 8, "global_batch_size": 8, "backend": "deepspeed"},
            {"host.link_bytes_per_s", "node.bandwidth_bytes_per_s"},
        ),
    ],
)
def test_a_change_is_that_of_a_cluster_with_the_other_value(job: dict[str, Any], links: set[str]) -> None:
    made, found = _sensitive(seq_length=4096, **job)
    base = _step_s(made, made.cluster)
    for one in found.values():
        for sign, change in ((-1, one.low), (1, one.high)):
            other = _changed(made.cluster, one.name, exp(sign * one.uncertainty))
            assert _step_s(made, other) / base - 1 == pytest.approx(change, rel=1e-9, abs=1e-12), one.name
    assert links <= set(found)
