"""The tables of accuracy: where a source was published, what is reached of what is wanted, and the constants."""

from __future__ import annotations

from typing import Any

from symconfig.measured.calibrate import kernel_priors
from tools.accuracy_tables import markdown, page

EMPTY = {"sources": [], "left_out": [], "unseen": [], "ratios": [], "covered": {}}


def test_targets_are_judged_by_the_median_and_the_worst_source_and_by_kind() -> None:
    ratios = [
        {"quantity": "time", "gpu": "hopper", "kind": kind, "source": source, "measured": measured}
        for kind, source, measured in (
            ("dense", "one", [1.0, 0.8]),
            ("dense", "two", [0.5]),
            ("dense", "three", [1.0]),
            ("experts", "one", [2.0]),
        )
    ]
    text = markdown(EMPTY | {"ratios": ratios, "covered": {"dense": 0.9}})
    assert (
        "| step time, dense models | 3 | 5 % in the median, 12 % at worst | 12.5 % | 100.0 % (two) | 90.0 % |" in text
    )
    assert (
        "| step time, mixtures of experts | 1 | 12 % in the median, 20 % at worst | 50.0 % | 50.0 % (one) |  |" in text
    )


NEAR: dict[str, Any] = {
    "prior": 0.8, "prior_uncertainty": 0.1, "basis": "6 kernels (cudnn-fe)", "value": 0.78, "uncertainty": 0.05,
    "deviations": None, "rows": {},
}  # fmt: skip
FAR = NEAR | {"value": 0.4, "deviations": -3.1, "rows": {"a-run": 0.54, "b-run": 0.2}}


def test_every_constant_stands_in_a_table_and_one_that_left_its_prior_below_it() -> None:
    text = page({"constants": [{"cluster": "h100", "constants": {"hbm_efficiency": NEAR, "gemm_efficiency": FAR}}]})
    assert "## h100" in text
    assert "| hbm_efficiency | 0.8 +- 10.0 % | 6 kernels (cudnn-fe) | 0.78 +- 5.0 % |" in text
    assert "hbm_efficiency is" not in text
    assert (
        "\n\ngemm_efficiency is 3.1 deviations below its prior of 0.8 +- 10.0 %. "
        "The runs that pull it most: a-run (54.0 %), b-run (20.0 %).\n"
    ) in text


def test_every_source_of_kernels_is_named() -> None:
    text = page({"constants": []})
    for name, title in kernel_priors().sources.items():
        assert f"- {name}: {title}" in text
