"""Intervals of predictions: which runs count as comparable, and what their errors make of a prediction."""

from __future__ import annotations

import pytest

from symconfig.descriptor.load import load_cluster, load_model
from symconfig.solve import interval as module
from symconfig.solve.interval import LEAST, Ratios, interval, recorded

DENSE, EXPERTS = load_model("llama2-13b"), load_model("mixtral-8x7b")
A100, H100 = load_cluster("a100-80gb"), load_cluster("h100")


def spread(n: int, low: float, high: float) -> tuple[float, ...]:
    return tuple(low + (high - low) * index / (n - 1) for index in range(n))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense models on two architectures, a few mixtures of experts."""
    known = (
        Ratios("time", "megatron", "ampere", "dense", spread(101, 0.9, 1.1)),
        Ratios("time", "deepspeed", "hopper", "dense", spread(LEAST, 0.8, 1.2)),
        Ratios("time", "megatron", "hopper", "dense", spread(LEAST - 1, 0.5, 0.6)),
        Ratios("time", "megatron", "hopper", "experts", spread(5, 0.7, 2.0)),
        Ratios("memory", "megatron", "ampere", "dense", spread(40, 1.02, 1.2)),
    )
    monkeypatch.setattr(module, "recorded", lambda: known)


@pytest.mark.usefixtures("runs")
def test_nine_of_ten_comparable_runs_lie_within() -> None:
    found = interval("time", "megatron", A100, DENSE)
    inside = [found.low <= ratio <= found.high for ratio in spread(101, 0.9, 1.1)]
    assert 0.9 <= sum(inside) / len(inside) <= 0.93
    assert found.basis == "101 runs of dense models on ampere GPUs"


@pytest.mark.usefixtures("runs")
def test_the_tail_of_the_fewest_runs_is_the_worst_one() -> None:
    found = interval("time", "deepspeed", H100, DENSE)
    assert (found.low, found.high) == (0.8, 1.2)


@pytest.mark.usefixtures("runs")
def test_too_few_runs_are_joined_by_less_alike_ones_which_is_said() -> None:
    found = interval("time", "megatron", H100, DENSE)
    assert found.basis == f"{2 * LEAST - 1} runs of dense models on hopper GPUs, with any framework"
    assert interval("time", "megatron", H100, EXPERTS).basis.endswith("runs of any model on any GPU")


@pytest.mark.usefixtures("runs")
def test_another_gpu_adds_the_uncertainty_of_its_constants() -> None:
    kernels = A100.kernels
    other = A100.model_copy(update={"gpu": A100.gpu.model_copy(update={"architecture": "cdna3"})})
    firm = kernels.model_copy(
        update={"gemm_efficiency": kernels.gemm_efficiency.model_copy(update={"uncertainty": 0.0})}
    )
    loose = interval("time", "megatron", other, DENSE)
    tight = interval("time", "megatron", other.model_copy(update={"kernels": firm}), DENSE)
    assert loose.low < tight.low < 1 < tight.high < loose.high


@pytest.mark.usefixtures("runs")
def test_a_bias_widens_one_side_and_the_prediction_stays_inside() -> None:
    found = interval("memory", "megatron", A100, DENSE)
    assert found.low == 1.0
    assert found.high > 1.15


def test_what_is_recorded_covers_both_quantities_and_all_kinds() -> None:
    assert {r.quantity for r in recorded()} == {"time", "memory"}
    assert {r.kind for r in recorded() if r.quantity == "time"} >= {"dense", "experts", "adapter"}
    assert all(list(r.measured) == sorted(r.measured) and r.measured[0] > 0 for r in recorded())
