"""Published rows of kernels as kernels of the cost model, the constants that they give, and the priors of those."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from symconfig.descriptor.cluster import SHARES
from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.measured.calibrate import BOUNDS, Distilled, Observed, believed, gpu_type, kernel_priors, priors
from symconfig.measured.gpu.kernel_fit import Attention, CastProduct, Product, Stream, model_seconds
from symconfig.units import GIB
from tools import priors_distil as PRIORS
from tools import priors_rows as SCRIPT

PRODUCT = {"kind": "gemm", "dtype": "bf16", "m": 4096, "n": 8192, "k": 4096, "tflops": 600.0}
ATTENTION = {"kind": "attention", "dtype": "bf16", "pass": "fwd", "impl": "cudnn", "causal": True, "batch": 1}
ATTENTION |= {"heads": 32, "kv_heads": 8, "seq": 8192, "head_dim": 128, "tflops": 500.0}
GATHER = {"kind": "collective", "op": "all_gather", "ranks": 8, "bytes": GIB, "network": "nvlink4"}
GATHER |= {"busbw_gb_per_s": 360.0}


def rows(folder: Path, *stated: dict[str, Any]) -> list[Any]:
    numbered = [{"id": f"r{index}", "gpu": "h100-sxm5-80gb", "source": "s", **row} for index, row in enumerate(stated)]
    data = {"sources": [{"id": "s", "title": "A table", "repo": "someone/something"}], "rows": numbered}
    (folder / "rows.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    return SCRIPT.read(folder)[1]


def test_a_rate_is_the_seconds_of_the_work_that_the_cost_model_knows(tmp_path: Path) -> None:
    product, attention, gather = rows(tmp_path, PRODUCT, ATTENTION, GATHER)
    assert product.seconds == pytest.approx(2 * 4096 * 8192 * 4096 / 600e12)
    assert product.work == (CastProduct(dtype="bf16", layout="forward", m=4096, n=8192, k=4096),)
    assert isinstance(attention.work[0], Attention)
    assert attention.seconds == pytest.approx(4 * 32 * 8192 * 4096 * 128 / 500e12)  # causal FLOPs, halved
    assert gather.work == (SCRIPT.Message("all_gather", 8, GIB),)
    assert gather.seconds == pytest.approx(7 / 8 * GIB / 360e9)


def test_a_forward_and_a_backward_measured_together_are_two_kernels(tmp_path: Path) -> None:
    (both,) = rows(tmp_path, ATTENTION | {"pass": "fwd_bwd"})
    assert [item.backward for item in both.work if isinstance(item, Attention)] == [False, True]
    assert both.seconds == pytest.approx(14 * 32 * 8192 * 4096 * 128 / 500e12)
    assert both.needs == {"attention_efficiency", "attention_backward_ratio"}


def test_a_layer_is_its_four_products_and_quantising_them_is_counted_where_it_was(tmp_path: Path) -> None:
    layer = {"kind": "gemm_layer_sum", "dtype": "fp8_current_scaling", "m": 16384, "hidden": 4096, "ffn_hidden": 16384}
    layer |= {"stage": "wgrad", "tflops": 900.0}
    cast, bare = rows(tmp_path, layer | {"software": "TE autocast"}, layer | {"software": "TE pre_quantized"})
    assert [type(item) for item in cast.work] == [Product] * 4
    assert [type(item) for item in bare.work] == [CastProduct] * 4
    assert all(
        isinstance(item, Product) and item.k == 16384 for item in cast.work
    )  # a weight's gradient sums over tokens
    assert cast.seconds == pytest.approx(2 * 16384 * 4096 * (3 + 1 + 4 + 4) * 4096 / 900e12)


def test_the_fastest_of_several_kernels_for_one_task_is_kept(tmp_path: Path) -> None:
    slow, fast = ATTENTION | {"impl": "flash_attention_2", "tflops": 370.0}, ATTENTION
    assert [row.id for row in rows(tmp_path, slow, fast)] == ["r1"]


@pytest.mark.parametrize(
    "row",
    [
        PRODUCT | {"m": 256},
        PRODUCT | {"accumulate": True},
        PRODUCT | {"dtype": "fp4"},
        PRODUCT | {"dtype": "nvfp4"},  # of which an H100 has no units
        PRODUCT | {"gpu": "gaudi3"},
        ATTENTION | {"causal": False},
        ATTENTION | {"window": 1024},
        ATTENTION | {"seq": 512},
        GATHER | {"bytes": 2**20},
        GATHER | {"op": "all_reduce"},  # NVLink's switches add up
        GATHER | {"ranks": 16, "nodes": 2, "op": "all_reduce", "network": "nvlink4+ib_8x400gbps"},  # a tree of two
        GATHER | {"ranks": 32, "nodes": 4, "network": "nvlink4+rdma"},  # at a rate that nobody states
        GATHER | {"ranks": 2, "nodes": 2, "network": "ib_1x400gbps"},
        {"kind": "norm", "op": "rms_norm", "pass": "fwd", "impl": "cudnn", "rows": 512, "cols": 4096, "us": 5.0},
    ],
)
def test_what_no_training_runs_or_no_formula_explains_is_left_out(tmp_path: Path, row: dict[str, Any]) -> None:
    assert rows(tmp_path, row) == []


def test_a_network_of_another_rate_is_the_clusters_with_that_rate(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, GATHER | {"ranks": 32, "nodes": 4, "network": "nvlink4+efa_4x100gbps"})
    assert row.needs == {"network_efficiency"}
    assert [level.bandwidth_bytes_per_s.value for level in row.cluster.levels[1:]] == [4 * 100e9 / 8 / 8] * 2


def test_streams_are_bytes_over_their_rate(tmp_path: Path) -> None:
    copy, norm = rows(
        tmp_path,
        {"kind": "hbm_bandwidth", "op": "stream_copy", "gb_per_s": 2900.0},
        {"kind": "norm", "op": "rms_norm", "pass": "bwd", "impl": "cudnn", "rows": 8192, "cols": 8192, "us": 150.0},
    )
    assert isinstance(copy.work[0], Stream)
    assert 2 * copy.work[0].moved / copy.seconds == pytest.approx(2.9e12)
    assert norm.work == (Stream(what="rmsnorm", backward=True, rows=8192, columns=8192),)
    assert norm.needs == {"hbm_efficiency"}


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
    assert gb300["attention_efficiency"].source.endswith("kernels (cudnn-fe)")
    assert gb300["gemm_efficiency"].source == "kernels of blackwell GPUs"
    assert priors(load_cluster("v100-16gb"))["gemm_efficiency"].source == "kernels of other generations"
    assert gb300["launch_s"].source == "assumed of any GPU"


fitted, seconds, spread, LAUNCH_S = PRIORS.fitted, PRIORS.seconds, PRIORS.spread, PRIORS.LAUNCH_S

KERNELS = Path(__file__).parents[3] / "shared" / "kernels"
STALE = "what is believed of GPUs is stale: python -m tools priors FOLDER"
TRUE = {
    "gemm_efficiency": 0.71, "gemm_efficiency_low": 0.58, "gemm_k_half": 300.0, "hbm_efficiency": 0.88,
    "launch_s": LAUNCH_S, "attention_efficiency": 0.61, "attention_backward_ratio": 0.68, "link_efficiency": 0.7,
    "network_efficiency": 0.85,
}  # fmt: skip


def made(source: str, slower: float = 1.0) -> list[Any]:
    """What a source would have measured of an H100 with the true constants, so much slower."""
    cluster = load_cluster("h100")
    sizes = [(m, n, k) for m in (2048, 4096) for n in (4096, 8192) for k in (1024, 2048, 8192)]
    attention = Attention(backward=False, batch=1, heads=16, kv_heads=16, length=8192, channels=128, value_channels=128)
    work = [
        *(CastProduct(dtype="bf16", layout="forward", m=m, n=n, k=k) for m, n, k in sizes),
        *(CastProduct(dtype="fp8", layout="forward", m=m, n=n, k=k) for m, n, k in sizes),
        *(attention.model_copy(update={"backward": backward}) for backward in (False, True)),
        *(Stream(what="copy", rows=2**15, columns=2**columns) for columns in (13, 14)),
        *(PRIORS.Message(op, ranks, float(GIB)) for op in ("all_gather", "all_to_all") for ranks in (8, 64)),
    ]
    blank = [PRIORS.Measured(f"{source}-{index}", source, cluster, (item,), 1.0) for index, item in enumerate(work)]
    values = {name: np.array([value]) for name, value in TRUE.items()}
    true = seconds(blank, values, 1)[:, 0]
    return [replace(row, seconds=slower * float(value)) for row, value in zip(blank, true, strict=True)]


def test_known_constants_come_back() -> None:
    found = fitted([*made("one"), *made("two")])
    assert found.values.keys() == TRUE.keys() - {"launch_s"}
    for name, value in found.values.items():
        # A constant of few rows is left nearer to what is believed of any GPU.
        assert value == pytest.approx(TRUE[name], rel=0.08), name
    assert max(map(abs, found.offsets.values())) < 0.06


def test_a_source_that_is_slow_as_a_whole_moves_rates_a_little_and_no_dependence_on_size() -> None:
    even, odd = fitted([*made("one"), *made("two")]), fitted([*made("one"), *made("two", slower=1.2)])
    assert odd.values["gemm_k_half"] == pytest.approx(even.values["gemm_k_half"], rel=0.03)
    moved = np.log(even.values["gemm_efficiency"] / odd.values["gemm_efficiency"])
    assert 0.3 * np.log(1.2) < moved < 0.7 * np.log(1.2)
    apart = [value for group, value in odd.offsets.items() if "gemm_efficiency," in group]
    assert max(apart) - min(apart) == pytest.approx(np.log(1.2), rel=0.3)


def test_rows_that_scatter_make_the_spread_of_a_training_larger() -> None:
    even = made("one")
    rough = [replace(row, seconds=row.seconds * (0.8 if index % 2 else 1.2)) for index, row in enumerate(even)]
    assert spread([fitted(rough)], "gemm_efficiency") > 1.3 * spread([fitted(even)], "gemm_efficiency")
    # Clocks that fall in long runs are no matter of links.
    assert spread([fitted(even)], "gemm_efficiency") > spread([fitted(even)], "link_efficiency")


def test_operands_that_came_cast_take_less_by_the_cast() -> None:
    h100 = load_cluster("h100")
    size = {"dtype": "fp8", "layout": "forward", "m": 4096, "n": 8192, "k": 4096}
    kernels = [Product.model_validate(size), CastProduct.model_validate(size)]
    whole, bare = model_seconds(kernels, h100, TRUE, 1)[:, 0]
    assert whole - bare == pytest.approx(3 * 4096 * 4096 / (0.88 * 3.35e12) + LAUNCH_S, rel=1e-6)


def test_the_zoo_has_what_the_published_rows_give() -> None:
    if not KERNELS.is_dir():
        pytest.skip(f"published measurements of kernels are not beside this checkout ({KERNELS})")
    written = kernel_priors().model_dump(by_alias=True, mode="json")
    now = PRIORS.distil(KERNELS)
    assert [gpu["cluster"] for gpu in now["gpus"]] == [gpu["cluster"] for gpu in written["gpus"]], STALE
    assert now["sources"] == written["sources"], STALE
    assert now["spread"] == pytest.approx(written["spread"], rel=0.02), STALE
    for mine, theirs in zip(now["gpus"], written["gpus"], strict=True):
        assert mine["constants"].keys() == theirs["constants"].keys(), STALE
        for name, item in mine["constants"].items():
            stated = theirs["constants"][name]
            assert item["value"] == pytest.approx(stated["value"], rel=0.02), f"{mine['cluster']}: {name}: {STALE}"
            assert (item["rows"], item["sources"]) == (stated["rows"], stated["sources"]), STALE
