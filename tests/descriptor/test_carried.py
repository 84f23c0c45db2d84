"""Constants fitted with one machine, used for another that differs from it."""

from __future__ import annotations

import pytest

from symconfig.descriptor.cluster import CARRIED
from symconfig.descriptor.load import load_cluster
from symconfig.measured.priors import ANY_GPU


def test_a_constant_of_other_hardware_is_as_sure_as_one_of_which_no_run_was_seen() -> None:
    for constants in CARRIED.values():
        for name, spread in constants.items():
            assert spread == ANY_GPU[name][1]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ("network=4x200Gb/s", {"network_efficiency"}),
        ("nvlink=300GB/s", {"link_efficiency"}),
        ("gpu_memory_bandwidth=3TB/s", {"hbm_efficiency"}),
        ("gpu.peak_flops.bf16=900TFLOP/s", {"gemm_efficiency", "gemm_efficiency_low", "attention_efficiency"}),
        ("gpu.peak_flops.fp8=null", set()),
        ("gpu_memory=96GB", set()),
        ("gpus_per_node=4", set()),
        ("network=8x400Gb/s", set()),  # what it was
        ("kernels.network_efficiency=0.7 and network=4x200Gb/s", set()),
    ],
)
def test_only_constants_of_what_changed_are_trusted_less(change: str, names: set[str]) -> None:
    mine, base = load_cluster(f"h100 with {change}").kernels, load_cluster("h100").kernels
    for name in type(base).model_fields:
        now, before = getattr(mine, name), getattr(base, name)
        if name in names:
            assert now.value == before.value
            assert now.uncertainty > before.uncertainty
            assert now.source.startswith(f"{before.source}; carried over from h100 to ")
        elif name not in change:
            assert now == before


def test_a_constant_that_was_never_sure_does_not_become_surer() -> None:
    mine = load_cluster("mi300x with network=4x200Gb/s and xgmi=300GB/s").kernels
    assert mine.link_efficiency.uncertainty == max(load_cluster("mi300x").kernels.link_efficiency.uncertainty, 0.25)
