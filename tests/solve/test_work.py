"""Kinds of work of a step sum to what the plan says that a GPU does and waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from symconfig.plans.degrees import Degrees
from symconfig.solve.configuration import Configuration
from symconfig.solve.predict import predict
from symconfig.solve.work import work
from tests.sample_models import sample_cluster
from tests.solve.naive import tiny

PLAIN = Configuration(
    degrees=Degrees(tp=2, pp=1, vpp=1, cp=1, ep=1, etp=1, dp=2), micro=2, global_batch=16, seq_length=2048
)


def changed(**changes: Any) -> Configuration:
    """PLAIN with other degrees or options."""
    names = Degrees.__dataclass_fields__
    degrees = {name: changes.pop(name) for name in list(changes) if name in names}
    return replace(PLAIN, degrees=replace(PLAIN.degrees, **degrees), **changes)


PARTS = ("compute", "layer communication")


@pytest.mark.parametrize("changes", [{}, {"tp": 1}, {"sequence_parallel": True}, {"cp": 2}, {"seq_length": 256}])
def test_all_of_it_is_the_step_without_data_parallelism(changes: dict[str, Any]) -> None:
    asked = changed(**changes)
    found = work(tiny(), sample_cluster(), asked)
    time = predict(tiny(), sample_cluster(), asked).predicted.time
    assert sum(one.total_s for one in found) == pytest.approx(sum(time[name] for name in PARTS))
    assert all(one.forward_s >= 0 and one.backward_s >= 0 and one.hidden_s >= 0 for one in found)


def test_short_sequences_wait_for_the_host() -> None:
    seconds = {one.name: one.total_s for one in work(tiny(), sample_cluster(), changed(seq_length=256))}
    assert seconds["waiting for the host to launch kernels"] > seconds["matmuls of the layers"]
