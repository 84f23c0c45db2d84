"""When a time of a kernel counts, and constants from kernels' times: known ones come back, with each family's error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from symconfig.cost.machine import constants
from symconfig.descriptor.cluster import ClusterDescriptor, Kernels
from symconfig.descriptor.load import load_cluster
from symconfig.errors import InputError
from symconfig.measured.gpu.kernel_fit import (
    HostCopy,
    Kernel,
    KernelTimes,
    Product,
    Rig,
    Row,
    fit_kernels,
    model_seconds,
)
from symconfig.measured.gpu.kernel_run import Bench
from symconfig.measured.gpu.kernels import (
    LEAST_SAMPLES,
    MOST_RUNS,
    MOST_SAMPLES,
    SAMPLE_S,
    DeviceClock,
    timed,
    wanted_kernels,
)

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


class Scripted:
    """A clock whose samples are given; time passes by them."""

    def __init__(self, *seconds: float) -> None:
        self.left, self.runs, self.time = list(seconds), [], 0.0

    def sample(self, call: Callable[[int], object], runs: int) -> float:
        self.runs.append(runs)
        seconds = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        self.time += seconds * runs
        return seconds

    def now(self) -> float:
        return self.time


def test_samples_count_from_when_two_agree() -> None:
    clock = Scripted(5e-3, 4e-3, 2e-3, 1.01e-3, *[1.0e-3, 1.2e-3, 1.1e-3] * 4)
    found = timed(clock, lambda index: None, 0.2, clock.now)
    assert found.seconds == pytest.approx(1.1e-3)  # neither the first run nor those while it became faster
    assert found.samples == MOST_SAMPLES
    assert 0 < found.spread < 0.1


def test_short_kernels_run_many_times_in_a_sample_and_long_ones_once() -> None:
    short, long = Scripted(1e-6), Scripted(0.5)
    assert timed(short, lambda index: None, 0.1, short.now).seconds == 1e-6
    assert max(short.runs) == MOST_RUNS
    assert timed(long, lambda index: None, 0.1, long.now).samples == LEAST_SAMPLES
    assert max(long.runs) == 1
    middle = Scripted(SAMPLE_S / 10)
    timed(middle, lambda index: None, 0.1, middle.now)
    assert max(middle.runs) == 10


def test_a_kernel_that_never_settles_ends_with_its_share_of_time() -> None:
    wild = Scripted(*([1e-3, 2e-3] * 200))
    found = timed(wild, lambda index: None, 0.1, wild.now)
    assert LEAST_SAMPLES <= found.samples <= MOST_SAMPLES
    assert wild.time < 0.2
    assert found.spread > 0.1


class Cuda:
    """A device that is through with its lead at once until the lead is long enough; a run takes `run_s`."""

    def __init__(self, enough_s: float, run_s: float) -> None:
        self.enough_s, self.run_s, self.leads, self.log = enough_s, run_s, [], []

    def _sleep(self, cycles: int) -> None:
        self.leads.append(cycles / 2e9)
        self.log.append("sleep")

    def Event(self, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        lead = self.leads
        return SimpleNamespace(
            record=lambda: self.log.append("record"),
            query=lambda: lead[-1] < self.enough_s,
            synchronize=lambda: self.log.append("synchronize"),
            elapsed_time=lambda end: 1e3 * self.run_s * self.log[-6:].count("run"),
        )


def test_a_device_that_waited_for_its_host_is_asked_again_with_a_longer_lead() -> None:
    cuda = Cuda(enough_s=3e-3, run_s=1e-9)
    clock = DeviceClock(SimpleNamespace(cuda=cuda))
    assert clock.sample(lambda index: cuda.log.append("run"), 3) == pytest.approx(1e-9)
    assert cuda.leads == sorted(cuda.leads)
    assert cuda.leads[-2] < 3e-3 <= cuda.leads[-1]
    # Nothing synchronises between the first event and the last.
    assert cuda.log[-7:] == ["sleep", "record", "run", "run", "run", "record", "synchronize"]


def test_a_host_that_is_never_fast_enough_ends_the_search_for_a_lead() -> None:
    cuda = Cuda(enough_s=1e9, run_s=1e-9)
    DeviceClock(SimpleNamespace(cuda=cuda)).sample(lambda index: cuda.log.append("run"), 3)
    assert 1 < len(cuda.leads) < 12
