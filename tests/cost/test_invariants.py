"""What must hold whatever the efficiencies are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.cost import formulas
from symconfig.cost.formulas import product_s
from symconfig.cost.lattice import Lattice
from symconfig.cost.machine import machine
from symconfig.cost.work import collective_s, flops_per_token
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.frameworks.known import FRAMEWORKS
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.model import blocks, derived, dim_sizes, sequence
from symconfig.graph.scheme import Scheme
from tests.cost.support import cost, seconds
from tests.graph.support import SEQUENCE, block, numbers
from tests.sample_models import sample_cluster, sample_model
from tests.solve.naive import tiny

MODEL = tiny()
powers = st.sampled_from([1, 2, 4])


def faster(times: float) -> ClusterDescriptor:
    """The sample cluster with every rate of GPU and network raised."""
    data: dict[str, Any] = sample_cluster().model_dump(mode="json", by_alias=True)
    data["gpu"]["memory_bandwidth_bytes_per_s"]["value"] *= times
    for peak in data["gpu"]["peak_flops"].values():
        if peak:
            peak["value"] *= times
    for level in data["levels"]:
        level["bandwidth_bytes_per_s"]["value"] *= times
    return ClusterDescriptor.model_validate(data, strict=False)


@pytest.mark.parametrize("name", ["llama2-13b", "qwen3-30b-a3b", "deepseek-v3"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_collective_over_one_rank_costs_nothing(name: str, framework: str) -> None:
    model = sample_model(name)
    values = {key: np.full(1, float(value)) for key, value in numbers(model).items()}
    gpu = machine(sample_cluster(), "bf16")
    for kind in blocks(model):
        for collective in block(model, kind, SEQUENCE).collectives:
            assert collective_s(collective, Lattice(values, 1), gpu, FRAMEWORKS[framework]) == [0.0]


@given(tp=powers, pp=powers, cp=powers)
@settings(max_examples=10, deadline=None)
def test_faster_hardware_is_never_slower(tp: int, pp: int, cp: int) -> None:
    if tp * pp * cp > 8:
        cp = 1
    if tp * pp * cp > 8:
        pp = 1
    steps = [
        sum(seconds(cost(MODEL, tp=tp, pp=pp, cp=cp, dp=1, microbatches=4, cluster=faster(times))).values())
        for times in (1.0, 1.5, 4.0)
    ]
    assert steps[0] >= steps[1] >= steps[2] > 0


SIZES = {"level0": 8.0, "level1": 64.0, "level2": 1e12, "level3": 1e12}


def levels(bandwidth: float, latency: float) -> dict[str, float]:
    result = {}
    for index, (name, size) in enumerate(SIZES.items()):
        result |= {
            f"{name}_size": size,
            f"{name}_bytes_per_s": bandwidth / 4**index,
            f"{name}_latency_s": latency * (index + 1),
            f"{name}_mesh": 0.0,
        }
    return result


@given(
    amount=st.floats(1.0, 1e12),
    ranks=st.sampled_from([2.0, 4.0, 8.0, 64.0, 512.0]),
    stride=st.sampled_from([1.0, 2.0, 8.0, 64.0]),
    more=st.floats(1.0, 10.0),
)
def test_more_bandwidth_never_costs_time_and_more_bytes_never_save_any(
    amount: float, ranks: float, stride: float, more: float
) -> None:
    for function, given_ in (
        (formulas.ring_s, (2.0, ranks, stride)),
        (formulas.all_to_all_s, (ranks, stride, 8.0, 0.0, 1.0, 1.0)),
        (formulas.all_to_all_s, (ranks, stride, 8.0, 1.0, 1.0, 1.0)),
        (formulas.all_to_all_s, (ranks, stride, 8.0, 1.0, 8.0, 4.0)),
        (formulas.send_s, (ranks, stride)),
    ):
        base = float(function(amount, *given_, **levels(1e11, 1e-6)))
        assert base > 0
        assert float(function(amount, *given_, **levels(1e11 * more, 1e-6))) <= base * (1 + 1e-12)
        assert float(function(amount * more, *given_, **levels(1e11, 1e-6))) >= base * (1 - 1e-12)
        assert float(function(amount, *given_, **levels(1e11, 1e-6 * more))) >= base * (1 - 1e-12)


@given(shape=st.tuples(*[st.integers(1, 8192).map(float)] * 3), peak=st.floats(1e12, 1e15), more=st.floats(1.0, 10.0))
def test_a_matmul_is_never_faster_than_the_peak_or_the_memory(
    shape: tuple[float, float, float], peak: float, more: float
) -> None:
    m, n, k = shape

    def seconds_of(rate: float, width: float) -> float:
        gpu = replace(machine(sample_cluster(), "bf16"), high_peak_flops=rate, hbm_bytes_per_s=width)
        return float(product_s(gpu, 1.0, m, n, k, efficiency=0.8, element_bytes=2.0))

    base = seconds_of(peak, 1e12)
    assert base >= 2 * m * n * k / peak
    assert base >= 2 * (m * k + k * n + m * n) / 1e12
    assert seconds_of(peak * more, 1e12 * more) <= base * (1 + 1e-12)


def test_frozen_weights_spare_their_weight_gradients() -> None:
    values = {**dim_sizes(tiny("llama2-13b-lora")), "seq_length": 2048, "keys_full": 1024, "keys_window": 1024}

    def flops(name: str) -> float:
        model = tiny(name)
        return flops_per_token(derived(model, MEGATRON.implementation, Scheme(False)), sequence(model), values)

    layer = 512 * (512 * 2 + 256 * 2) + 3 * 512 * 1536
    adapters = 4 * 16 * ((512 + 512) + (512 + 256))
    assert flops("llama2-13b") - flops("llama2-13b-lora") == 2 * (4 * layer + 512 * 32000) - 6 * adapters
