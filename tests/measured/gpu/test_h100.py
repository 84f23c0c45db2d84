"""The runs of one H100 80GB HBM3 (torch 2.11.0+cu130; benchmarks/gpu/h100.yaml), against their prediction."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.measured.support import score

H100 = score(Path("benchmarks/gpu/h100.yaml"))
# Row -> error of a step at most; of the peak at least and at most. Steps were within 0.035, 0.015 and 0.02 while the
# rates of H100 also made up for what sources do otherwise; now these offsets are sources' own.
BOUNDS = {
    "llama3.2-1b-plain-rank0-local": (0.04, -0.001, 0.015),
    "llama3.1-8b-rank0-local": (0.05, -0.001, 0.001),
    "llama3.2-1b-deepspeed-zero2": (0.06, -0.001, 0.045),
}


def test_all_are_scored_and_fully_stated() -> None:
    assert {row.row.id for row in H100.stated.rows} == set(BOUNDS)
    assert not H100.skipped


@pytest.mark.parametrize("name", BOUNDS)
def test_a_step_and_its_peak_are_as_predicted(name: str) -> None:
    row = next(row for row in H100.rows if row.row.id == name)
    step, low, high = BOUNDS[name]
    assert row.time is not None
    assert row.memory is not None
    predicted, measured = row.time
    assert abs(predicted / measured - 1) <= step
    predicted, measured = row.memory
    assert low <= predicted / measured - 1 <= high
