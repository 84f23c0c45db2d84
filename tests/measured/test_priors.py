"""What is believed of a GPU before a run of it: its kernels, its generation, all others."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from symconfig.descriptor.cluster import SHARES
from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.measured.calibrate import BOUNDS
from symconfig.measured.gpu.kernel_fit import model_seconds
from symconfig.measured.gpu.kernel_times import CastProduct
from symconfig.measured.priors import Distilled, Observed, believed, gpu_type, kernel_priors, priors

NAME = "gemm_efficiency"
# Best shapes' share of the peak as people published them.
BEST = {"a100-80gb": 0.87, "h100": 0.80, "b200": 0.78, "gb200-nvl72": 0.73, "mi300x": 0.525}


def observed(number: int, generation: str, value: float, uncertainty: float = 0.05) -> Observed:
    constant = Distilled(value=value, uncertainty=uncertainty, rows=10, sources=("s",))
    return Observed((number,), generation, constant)


def test_a_gpu_with_kernels_keeps_what_they_say() -> None:
    seen = [observed(1, "old", 0.5), observed(2, "new", 0.8), observed(3, "new", 0.82)]
    mine = believed(NAME, (1,), "old", seen)
    assert mine.value == pytest.approx(0.5, rel=0.06)
    assert mine.uncertainty == pytest.approx(0.05, rel=0.1)


def test_a_gpu_without_kernels_borrows_from_its_generation_and_that_from_all_with_less_and_less_sureness() -> None:
    seen = [observed(1, "old", 0.5), observed(2, "new", 0.8), observed(3, "new", 0.8)]
    own = believed(NAME, (2,), "new", seen)
    sibling, stranger = believed(NAME, (9,), "new", seen), believed(NAME, (9,), "unknown", seen)
    nothing = believed(NAME, (9,), "unknown", [])
    assert own.value > sibling.value > stranger.value > 0.5
    assert own.uncertainty < sibling.uncertainty < stranger.uncertainty < nothing.uncertainty
    assert believed(NAME, (9,), "old", seen).value < stranger.value


def test_unsure_kernels_count_for_less() -> None:
    sure, unsure = (believed(NAME, (1,), "old", [observed(1, "old", 0.5, width)]) for width in (0.02, 0.3))
    assert abs(log(sure.value / 0.5)) < 0.1 * abs(log(unsure.value / 0.5))


def test_what_the_zoo_believes_is_possible_and_names_its_sources() -> None:
    known = kernel_priors()
    for item in known.gpus:
        assert item.cluster in zoo_clusters()
        for name, constant in item.constants.items():
            low, high = BOUNDS[name]
            assert low < constant.value < high, (item.cluster, name)
            assert set(constant.sources) <= known.sources.keys()
    types = [gpu_type(load_cluster(item.cluster)) for item in known.gpus]
    assert len(set(types)) == len(types)


def test_gpus_of_a_generation_differ_in_shares_of_their_peaks_alone() -> None:
    b200, gb200 = (priors(load_cluster(name)) for name in ("b200", "gb200-nvl72"))
    assert {name for name, prior in b200.items() if prior.value == gb200[name].value} == b200.keys() - set(SHARES)


@pytest.mark.parametrize("name", BEST)
def test_large_products_reach_what_the_best_published_ones_do(name: str) -> None:
    """Within what long runs lose and sources differ by; a product that fills every wave, of a long inner dimension."""
    cluster = load_cluster(name)
    rows = 16 * cluster.gpu.compute_units  # of tiles of 256 by 128
    product = CastProduct(dtype="bf16", layout="forward", m=256 * rows // 16, n=128 * 16, k=8192)
    values = {constant: np.array([prior.value]) for constant, prior in priors(cluster).items()}
    peak = cluster.gpu.peak_flops.fp16.value
    share = product.flops / model_seconds([product], cluster, values, 1)[0, 0] / peak
    assert abs(log(share / BEST[name])) < priors(cluster)["gemm_efficiency"].uncertainty
    assert share == pytest.approx(BEST[name], rel=0.12)


def test_every_prior_says_what_it_rests_on() -> None:
    gb300 = priors(load_cluster("gb300-nvl72"))
    assert gb300["attention_efficiency"].basis.endswith("kernels (cudnn-fe)")
    assert gb300["gemm_efficiency"].basis == "kernels of blackwell GPUs"
    assert priors(load_cluster("v100-16gb"))["gemm_efficiency"].basis == "kernels of other generations"
    assert gb300["launch_s"].basis == "assumed of any GPU"
