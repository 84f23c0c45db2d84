"""Constants from kernels' times: known ones come back, and each family's error is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from symconfig.cost.machine import constants
from symconfig.descriptor.cluster import ClusterDescriptor, Kernels
from symconfig.descriptor.load import load_cluster
from symconfig.errors import InputError
from symconfig.measured.gpu.kernel_fit import fit_kernels, model_seconds
from symconfig.measured.gpu.kernel_run import Bench
from symconfig.measured.gpu.kernel_times import HostCopy, Kernel, KernelTimes, Product, Rig, Row
from symconfig.measured.gpu.kernels import wanted_kernels

RIG = Rig(product="NVIDIA H200", driver="570.1", cuda="12.8", torch="2.8.0", date="2026-11-21")
TRUE = {
    "gemm_efficiency": 0.71, "gemm_efficiency_low": 0.58, "gemm_k_half": 250.0, "hbm_efficiency": 0.88,
    "launch_s": 2.5e-6, "attention_efficiency": 0.61, "attention_backward_ratio": 0.68,
}  # fmt: skip


@pytest.fixture(scope="module")
def h200() -> ClusterDescriptor:
    return load_cluster("h200")


@pytest.fixture(scope="module")
def kernels() -> list[Kernel]:
    return [kernel for kernel in wanted_kernels(Bench(None, "cuda", 0)) if not isinstance(kernel, HostCopy)]


def times_of(kernels: list[Kernel], seconds: np.ndarray) -> KernelTimes:
    rows = tuple(
        Row(what=kernel, seconds=float(value), spread=0.01, samples=7)
        for kernel, value in zip(kernels, seconds, strict=True)
    )
    return KernelTimes(rig=RIG, cluster="h200", rows=rows)


def true_seconds(kernels: list[Kernel], cluster: ClusterDescriptor) -> np.ndarray:
    values = {name: np.array([value]) for name, value in TRUE.items()}
    return model_seconds(kernels, cluster, values, 1)[:, 0]


def test_known_constants_come_back_from_noisy_times(kernels: list[Kernel], h200: ClusterDescriptor) -> None:
    noise = np.exp(0.05 * np.random.default_rng(7).standard_normal(len(kernels)))
    noise[5::17] *= 1.8  # a few kernels that a library has no good implementation of
    found = fit_kernels(times_of(kernels, true_seconds(kernels, h200) * noise), h200)
    for parameter, value, spread in zip(found.parameters, found.fit.values, found.fit.uncertainty, strict=True):
        # Large products hardly depend on how fast K fills.
        assert value == pytest.approx(TRUE[parameter.name], rel=0.35 if parameter.name == "gemm_k_half" else 0.06)
        assert abs(np.log(value / TRUE[parameter.name])) < 3 * spread + 0.02
    assert {p.name for p in found.parameters} == set(TRUE)
    for errors in found.families:
        assert errors.after < 0.2
    products = next(each for each in found.families if each.family == "product, bf16")
    assert products.after < products.before
    assert products.n == 48


def test_exact_times_leave_no_error_and_what_was_not_measured_stays(
    kernels: list[Kernel], h200: ClusterDescriptor
) -> None:
    found = fit_kernels(times_of(kernels, true_seconds(kernels, h200)), h200)
    assert max(errors.after for errors in found.families) < 0.01
    stated = constants(found.kernels)
    for parameter, value, spread in zip(found.parameters, found.fit.values, found.fit.uncertainty, strict=True):
        # Only the prior draws an answer off exact times, and by much less than it says to be uncertain.
        assert abs(np.log(value / TRUE[parameter.name])) < spread / 3, parameter.name
        assert stated[parameter.name] == pytest.approx(value, rel=5e-3)
    for name in ("link_efficiency", "network_efficiency"):
        assert getattr(found.kernels, name) == getattr(h200.kernels, name)
    for text in ("NVIDIA H200", "driver 570.1", "CUDA 12.8", "torch 2.8.0", "2026-11-21"):
        assert text in found.kernels.gemm_efficiency.source
    assert all(getattr(found.kernels, name).uncertainty >= 0.03 for name in TRUE)


def test_a_constant_without_kernels_is_not_fitted(h200: ClusterDescriptor) -> None:
    product = Product(dtype="bf16", layout="forward", m=4096, n=4096, k=4096)
    found = fit_kernels(times_of([product], true_seconds([product], h200)), h200)
    assert {p.name for p in found.parameters} == {"gemm_efficiency", "gemm_k_half"}
    assert found.kernels.hbm_efficiency == h200.kernels.hbm_efficiency
    assert set(Kernels.model_fields) == set(type(found.kernels).model_fields)


def test_products_in_a_precision_that_the_cluster_has_no_peak_of_are_left_out() -> None:
    a100 = load_cluster("a100-80gb")
    low = Product(dtype="fp8", layout="forward", m=4096, n=4096, k=4096)
    high = Product(dtype="bf16", layout="forward", m=4096, n=4096, k=4096)
    found = fit_kernels(times_of([low, high], np.array([1e-3, 1e-3])), a100)
    assert [row.what for row in found.rows] == [high]


def test_times_that_no_constant_explains_are_bad_input(h200: ClusterDescriptor) -> None:
    with pytest.raises(InputError, match="constants could be fitted"):
        fit_kernels(times_of([HostCopy(to_device=True, bytes=64)], np.array([1e-5])), h200)


def test_a_product_costs_what_a_plan_says(h200: ClusterDescriptor, tmp_path: Path) -> None:
    """The very formula: twice the work of a large product takes nearly twice as long."""

    def seconds(kernel: Kernel) -> float:
        return float(model_seconds([kernel], h200, {}, 1)[0, 0])

    one, two = (Product(dtype="bf16", layout="forward", m=m, n=16896, k=8192) for m in (16384, 32768))
    assert seconds(two) == pytest.approx(2 * seconds(one), rel=0.01)
    peak = h200.gpu.peak_flops.bf16
    assert 0.5 * peak.value < one.flops / seconds(one) < peak.value
