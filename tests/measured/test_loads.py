"""Recorded peaks of mixtures of experts, against loads of experts that would explain them."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from symconfig.descriptor.measurements import load_measurements
from symconfig.measured.judge import Judged, compared_stage, judge
from symconfig.solve.costed import costed
from symconfig.solve.predict import as_found
from symconfig.units import GIB
from tests.measured.support import PUBLISHED

SHARE = 0.1  # of the peak, that doubles with the load: below, its error is all that a peak tells
UNEVEN = 1.5


def explains(item: Judged) -> float | None:
    """The load in all layers with which the stage's predicted peak is the recorded one; None: it tells nothing."""
    assert item.memory is not None
    what, stage = item.case, compared_stage(item.row, item.prediction)
    found = as_found(what.model, what.cluster, what.configuration)

    def peak(load: float) -> float:
        limits = found.request.job.limits.model_copy(update={"expert_imbalance": load})
        job = found.request.job.model_copy(update={"limits": limits})
        return costed(replace(found, request=replace(found.request, job=job))).peaks[stage] / GIB

    even, per_unit = peak(1.0), peak(2.0) - peak(1.0)
    return 1 + (item.memory[1] / GIB - even) / per_unit if per_unit > SHARE * even else None


def test_untrained_routers_load_ranks_as_evenly_as_predicted() -> None:
    """Of runs of 50 to 100 iterations from a random start, each rank's mean over its layers."""
    name = "megatron_golden_toy"
    if not PUBLISHED[0].is_dir():
        pytest.skip("published measurements are not beside this checkout")
    loads, alone = list[float](), list[float]()
    for row in load_measurements(PUBLISHED[0] / f"{name}.yaml").rows:
        if row.model.num_experts is None or row.measured.peak_allocated_gib is None or "moe" not in row.id:
            continue
        item = judge(name, row)
        ep = item.case.configuration.ep
        # A rank that had all tokens would have ep times the mean: what is more says nothing of loads.
        if (load := explains(item)) is not None and load <= max(ep, UNEVEN):
            (loads if ep > 1 else alone).append(load)
    assert len(loads) >= 15
    assert 1.0 <= median(loads) <= 1.25
    assert max(loads) < UNEVEN
    assert all(load > 1.25 for load in alone)  # there is no imbalance: so much is the prediction's error
