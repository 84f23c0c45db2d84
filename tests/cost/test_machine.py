"""A cluster as the numbers that the formulas ask for: what depends on the precision and on the kind of GPU."""

from __future__ import annotations

import pytest

from symconfig.cost.machine import SPREAD, machine, slowest
from symconfig.descriptor.load import load_cluster

MIB = 2.0**20


@pytest.mark.parametrize(
    ("name", "precision", "element", "cast", "transpose", "block_scaled"),
    [
        ("a100-80gb", "bf16", 2.0, 0.0, 1.0, False),
        ("h100", "bf16", 2.0, 0.0, 1.0, False),
        ("h100", "fp8", 1.0, 3.0, 2.0, False),  # cast: 2 bytes read, 1 written; Hopper transposes by itself: 1 and 1
        ("b200", "fp8", 1.0, 3.0, 1.0, False),
        ("b200", "mxfp8", 1 + 1 / 32, 3.0, 1.0, True),  # both operands have scales of blocks
        ("b200", "nvfp4", 1 / 2 + 1 / 16, 3.0, 1.0, True),
    ],
)
def test_bytes_of_low_precision(
    name: str, precision: str, element: float, cast: float, transpose: float, block_scaled: bool
) -> None:
    found = machine(load_cluster(name), precision)
    assert (found.quantised_bytes, found.cast_bytes, found.transpose_bytes) == (element, cast, transpose)
    assert found.block_scaled is block_scaled


@pytest.mark.parametrize(
    ("name", "channels", "torch_mib", "engine_mib"),
    [("a100-80gb", 0.0, 8.125, 4.0), ("h100", 64.0, 32.0, 32.0), ("b200", 128.0, 8.125, 32.0)],
)
def test_what_a_generation_of_gpus_has(name: str, channels: float, torch_mib: float, engine_mib: float) -> None:
    """Exponentials take as long as the products of so many channels; workspaces of cuBLAS and Transformer Engine."""
    found = machine(load_cluster(name), "bf16")
    assert found.softmax_channels == channels
    assert (found.torch_workspace_bytes, found.engine_workspace_bytes) == (torch_mib * MIB, engine_mib * MIB)


@pytest.mark.parametrize(("gpus", "deviates"), [(1, 0.0), (2, 0.564), (8, 1.424), (64, 2.363), (1024, 3.242)])
def test_all_gpus_wait_for_the_slowest_of_them(gpus: int, deviates: float) -> None:
    """Expected maxima of so many standard normal deviates (2: 1/sqrt(pi); Harter, Biometrika 48, 1961)."""
    assert slowest(gpus) == pytest.approx(SPREAD * deviates, rel=0.05)
    one, many = machine(load_cluster("h100"), "fp8"), machine(load_cluster("h100"), "fp8", gpus=gpus)
    for rate in (
        "peak_flops",
        "high_peak_flops",
        "hbm_bytes_per_s",
        "copy_bytes_per_s",
        "attention_flops",
        "attention_backward_flops",
    ):
        assert getattr(one, rate) / getattr(many, rate) == pytest.approx(1 + slowest(gpus))
    assert one.levels == many.levels
