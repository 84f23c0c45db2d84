"""Constants from published kernels: known ones come back, and what is written is what the rows give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symconfig.descriptor.load import load_cluster
from symconfig.measured.calibrate import kernel_priors
from symconfig.measured.gpu.kernel_fit import Attention, CastProduct, Product, Stream, model_seconds
from symconfig.units import GIB
from tools import priors_distil as PRIORS

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
