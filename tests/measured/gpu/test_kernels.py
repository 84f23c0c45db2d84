"""Kernels on the CPU at hand, end to end; and what happens where one cannot run."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.errors import InputError, SymconfigError
from symconfig.measured.gpu import kernels as module
from symconfig.measured.gpu.kernel_fit import Attention, KernelTimes, Launch, Product, Stream, fit_kernels, read
from symconfig.measured.gpu.kernel_run import Bench, bench, implementations, unsupported
from symconfig.measured.gpu.kernels import choose_device, measure_kernels, wanted_kernels, zoo_name
from symconfig.report.calibration import kernel_blocks
from symconfig.report.grid import plain

torch: Any = pytest.importorskip("torch")
PUBLISHED = Path(__file__).parents[2] / "published" / "kernel_times"


def quiet(phase: str, share: float) -> None:
    assert 0 <= share < 1


def test_products_have_the_layouts_and_sizes_that_they_say() -> None:
    on = bench(torch, "cpu")
    for layout in ("forward", "input-gradient", "weight-gradient"):
        for batch in (1, 3):
            (make,) = implementations(on, Product(dtype="bf16", layout=layout, batch=batch, m=5, n=7, k=11)).values()
            shape = (5, 7) if batch == 1 else (3, 5, 7)
            assert tuple(make()(0).shape) == shape  # type: ignore[attr-defined]


@pytest.mark.parametrize("backward", [False, True])
def test_attention_and_streams_run_forward_and_backward(backward: bool) -> None:
    on = bench(torch, "cpu")
    attention = Attention(backward=backward, batch=2, heads=4, kv_heads=2, length=8, channels=6, value_channels=4)
    for kernel in (
        attention,
        *(
            Stream.model_validate({"what": what, "backward": backward, "rows": 3, "columns": 10})
            for what in ("rmsnorm", "layernorm", "glu", "gelu")
        ),
    ):
        (make,) = implementations(on, kernel).values()
        result: Any = make()(0)
        if not backward:
            assert result.shape == ((2, 4, 8, 4) if kernel is attention else (3, 10))
        elif kernel is attention:
            assert [tuple(each.shape) for each in result] == [(2, 4, 8, 6), (2, 2, 8, 6), (2, 2, 8, 4)]
        else:
            assert [tuple(each.shape) for each in result] == [(3, 20 if kernel.what == "glu" else 10)]


def test_a_kernel_that_does_not_fit_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB\nand more lines")

    monkeypatch.setattr(torch, "mm", refuse)
    wanted = [Product(dtype="bf16", layout="forward", m=8, n=8, k=8), Launch()]
    times = measure_kernels(torch, "cpu", 1.0, quiet, wanted)
    assert [item.reason for item in times.skipped] == ["CUDA out of memory. Tried to allocate 3 GiB"]
    assert [row.what.family for row in times.rows] == ["launch"]


def test_the_fastest_implementation_counts_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("No available kernel. Aborting execution.")

    made = {"slow": lambda: lambda index: time.sleep(1e-3), "broken": broken, "fast": lambda: lambda index: None}
    monkeypatch.setattr(module, "implementations", lambda on, kernel: made)
    times = measure_kernels(torch, "cpu", 1.0, quiet, [Launch()])
    assert times.rows[0].how == "fast"
    assert times.rows[0].seconds < 9e-4


def test_what_is_left_when_the_time_is_spent_is_said_and_every_family_has_had_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "implementations", lambda on, kernel: {None: lambda: lambda index: time.sleep(0.03)})
    wanted = [Product(dtype="bf16", layout="forward", m=size, n=8, k=8) for size in range(1, 9)]
    times = measure_kernels(torch, "cpu", 0.3, quiet, [*wanted, Launch()])
    assert 2 <= len(times.rows) < 9
    assert "launch" in {row.what.family for row in times.rows}
    assert {item.reason for item in times.skipped} == {"the budget of time was spent"}
    assert len(times.rows) + len(times.skipped) == 9


def gpu(capability: tuple[int, int], hip: str | None = None, **more: Any) -> Bench:
    facts = SimpleNamespace(L2_cache_size=50 * 2**20)
    cuda = SimpleNamespace(
        get_device_capability=lambda: capability,
        current_device=lambda: 0,
        get_device_properties=lambda index: facts,
        mem_get_info=lambda: (60 * 2**30, 80 * 2**30),
    )
    return bench(
        SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip), bfloat16="bf16", float16="fp16", **more), "cuda"
    )


def test_types_that_a_gpu_has_not_are_known_by_its_capability() -> None:
    products = {
        dtype: Product.model_validate({"dtype": dtype, "layout": "forward", "m": 16, "n": 16, "k": 16})
        for dtype in ("bf16", "fp16", "fp8")
    }
    volta, ampere, hopper = gpu((7, 0)), gpu((8, 0), _scaled_mm=None), gpu((9, 0), _scaled_mm=None)
    assert "needs compute capability 8.0, this GPU has 7.0" in str(unsupported(volta, products["bf16"]))
    assert unsupported(volta, products["fp16"]) is None
    assert (volta.half, ampere.half) == ("fp16", "bf16")
    assert "8.9" in str(unsupported(ampere, products["fp8"]))
    assert unsupported(hopper, products["fp8"]) is None
    assert "_scaled_mm" in str(unsupported(gpu((9, 0)), products["fp8"]))  # an old torch
    for dtype in ("mxfp8", "nvfp4"):
        other = Product(dtype=dtype, layout="forward", m=64, n=64, k=64)
        assert "not timed" in str(unsupported(hopper, other))
    amd = gpu((9, 4), hip="6.4", _scaled_mm=None)
    assert unsupported(amd, products["bf16"]) is None
    assert "NVIDIA" in str(unsupported(amd, products["fp8"]))


def test_a_gpu_gets_every_family_once_and_without_bf16_its_products_in_fp16() -> None:
    old, new = wanted_kernels(gpu((7, 0))), wanted_kernels(gpu((9, 0)))
    assert {kernel.dtype for kernel in old if isinstance(kernel, Product)} == {"fp16"}
    assert {kernel.family for kernel in new} >= {
        "product, bf16",
        "product, fp8",
        "product, fp16",
        "grouped product, bf16",
    }
    assert len(set(new)) == len(new)
    low = [kernel for kernel in new if isinstance(kernel, Product) and kernel.dtype == "fp8"]
    assert not any(size % 16 for product in low for size in (product.m, product.n, product.k))  # cuBLASLt's requirement


def test_buffers_rotate_over_twice_the_cache_and_leave_memory() -> None:
    on = gpu((9, 0))
    assert on.sets(200e6) == 1
    assert on.sets(10 * 2**20) == 10
    assert on.sets(1e3) == 32
    assert on.sets(30 * 2**30) == 1


def test_a_gpu_that_stops_working_ends_the_measurement() -> None:
    def dead() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    on = Bench(SimpleNamespace(cuda=SimpleNamespace(synchronize=dead)), "cuda", 0)
    with pytest.raises(SymconfigError, match="stopped working in the middle of the measurement: an illegal"):
        module._check_alive(on, "an illegal memory access")


def test_a_gpu_of_the_zoo_is_known_by_the_drivers_name() -> None:
    assert zoo_name("NVIDIA H200") == "h200"
    assert zoo_name("NVIDIA H100 80GB HBM3") == "h100"
    assert zoo_name("NVIDIA H100 PCIe") is None
    products = [load_cluster(name).gpu.product for name in zoo_clusters()]
    assert len(set(products)) == len(products)


def test_an_old_torch_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.4.1+cu124")
    with pytest.raises(InputError, match=r"too old \(got 2.4.1\+cu124, need 2.5 or newer\)"):
        module.import_torch()


def test_a_device_that_is_not_here_or_not_known_is_bad_input() -> None:
    none = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False), __version__="2.13.0+cpu")
    with pytest.raises(InputError, match="--device cpu"):
        choose_device(none, None)
    with pytest.raises(InputError, match="need cuda or cpu"):
        choose_device(none, "tpu")
    assert choose_device(none, "cpu") == "cpu"


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.yaml")), ids=lambda path: path.stem)
def test_published_times_are_explained_better_after_the_fit(path: Path) -> None:
    times = read(path)
    cluster = _cluster(times)
    found = fit_kernels(times, cluster)
    before, after = (sum(each.n * getattr(each, name) for each in found.families) for name in ("before", "after"))
    report = plain(kernel_blocks(times, found))
    print(report)
    assert after < before
    assert max(len(line) for line in report.splitlines()) <= 120


def _cluster(times: KernelTimes) -> ClusterDescriptor:
    return load_cluster(times.cluster) if times.cluster else load_cluster(str(PUBLISHED / "clusters" / "cpu.yaml"))


class TwoSets(Bench):
    """Without a GPU to ask for its memory."""

    def sets(self, bytes_each: float) -> int:
        return 2


def test_low_precision_products_are_what_the_gpus_library_takes() -> None:
    """torch's own checks of layout, types and scales, on tensors of a GPU that have no memory."""
    fake = pytest.importorskip("torch._subclasses.fake_tensor")
    product = Product(dtype="fp8", layout="input-gradient", m=48, n=32, k=64)
    with fake.FakeTensorMode():
        (make,) = implementations(TwoSets(torch, "cuda", 0), product).values()
        result: Any = make()(1)
    assert (tuple(result.shape), result.dtype, result.device.type) == ((48, 32), torch.bfloat16, "cuda")


class Pretended(Bench):
    """A GPU's way through the code on a CPU's tensors."""

    @property
    def cuda(self) -> bool:
        return True


class Event:
    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


def test_a_gpus_way_from_the_warm_up_to_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    stubs = {
        "Event": Event,
        "_sleep": lambda cycles: None,
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "mem_get_info": lambda: (2**30, 2**31),
        "get_device_name": lambda: "NVIDIA H200",
        "get_device_capability": lambda: (8, 0),
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    monkeypatch.setattr(module, "_driver", lambda: "570.1")
    monkeypatch.setattr(module, "_WARM_UP_SIZE", 8)
    on = Pretended(torch, "cpu", 2**20)
    wanted = [
        Product(dtype="bf16", layout="forward", m=8, n=8, k=8),
        Product(dtype="fp8", layout="forward", m=16, n=16, k=16),
        Attention(backward=True, batch=1, heads=2, kv_heads=1, length=16, channels=8, value_channels=8),
        Stream(what="glu", rows=8, columns=8),
        Launch(),
    ]
    times = module._measured(on, 20.0, quiet, wanted)
    assert (times.cluster, times.rig.product, times.rig.driver) == ("h200", "NVIDIA H200", "570.1")
    assert {row.what.family for row in times.rows} == {
        "product, bf16",
        "attention, backward",
        "activation, forward",
        "launch",
    }
    assert {row.how for row in times.rows} == {None, "flash"}  # a CPU has no cuDNN
    assert [item.what.family for item in times.skipped] == ["product, fp8"]
    assert any("memory is in use" in note for note in times.notes)
    fit_kernels(times, load_cluster("h200"))


def test_a_stream_moves_its_inputs_and_outputs() -> None:
    forward, backward = (Stream(what="glu", backward=way, rows=10, columns=7) for way in (False, True))
    assert (forward.moved, backward.moved) == (3 * 70, 5 * 70)
    assert Stream(what="rmsnorm", backward=True, rows=10, columns=7).moved == 3 * 70
    assert Stream(what="copy", rows=10, columns=7).moved == 2 * 70
