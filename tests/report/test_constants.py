"""The page of constants, of a record that was made for this test."""

from __future__ import annotations

from typing import Any

from symconfig.measured.priors import kernel_priors
from tools.accuracy_tables import page

NEAR: dict[str, Any] = {
    "prior": 0.8,
    "prior_uncertainty": 0.1,
    "basis": "6 kernels (cudnn-fe)",
    "value": 0.78,
    "uncertainty": 0.05,
    "deviations": None,
    "rows": {},
}
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
