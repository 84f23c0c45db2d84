"""A plan with another optimizer differs from AdamW's by what that optimizer keeps and does, and by nothing else."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import symconfig
from symconfig.plans.plan import Candidate

PINS: dict[str, Any] = {
    "tp": 2,
    "pp": 1,
    "dp": 8,
    "mbs": 1,
    "recompute": "none",
    "user_buffers": "off",
    "cuda_graphs": "none",
    "grad_dtype": "fp32",
}
TP = 2
# Llama 3.1 8B: each layer's qkv_proj, o_proj, gate_up_proj and down_proj on one of two ranks.
LARGEST = 4096 * 28672 // TP
MATRICES = 32 * (4096 * 6144 + 4096 * 4096 + 4096 * 28672 + 4096 * 14336) // TP
TABLES = 2 * 128256 * 4096 // TP
NORMS = (2 * 32 + 1) * 4096


@cache
def planned(optimizer: str, zero: int, **settings: Any) -> Candidate:
    said = {"name": optimizer, **settings} if settings else optimizer
    found = symconfig.plan(
        model="llama3.1-8b", cluster="h200", gpus=16, global_batch_size=128, seq_length=2048, optimizer=said,
        pins={**PINS, "zero": zero}, top=1,
    )  # fmt: skip
    return found.best


def test_muon_keeps_four_bytes_less_of_each_matrix_of_a_layer() -> None:
    """One momentum for two moments; tables and norms stay with AdamW."""
    adam, muon = planned("adam", 0).predicted, planned("muon", 0).predicted
    assert adam.memory["optimizer state"] == 12 * (MATRICES + TABLES + NORMS)
    assert muon.memory["optimizer state"] == 8 * MATRICES + 12 * (TABLES + NORMS)
    for part in ("weights", "gradients", "activations", "head and loss"):
        assert muon.memory[part] == adam.memory[part], part
    assert {name for name in adam.time if adam.time[name] != muon.time[name]} == {"optimizer"}
    # Five iterations on every matrix, of 4 k^2 l + 2 k^3 each, at less than the GPU's 989 TFLOP/s.
    sides = [(3072, 4096), (2048, 4096), (4096, 14336), (4096, 7168)]
    flops = 32 * 5 * sum(4 * short**2 * long + 2 * short**3 for short, long in sides)
    assert flops / 989e12 < muon.time["optimizer"] < 2.5 * flops / 989e12


def test_muon_is_dealt_out_in_whole_matrices_and_pads_the_buffers() -> None:
    """Eight ranks; 32 layers are five buckets of 0.9 x 8 gate_up_proj, and something that is less than one each."""
    adam, muon = planned("adam", 1).predicted, planned("muon", 1).predicted
    bucket = 0.9 * 8 * LARGEST
    full = MATRICES // bucket
    rest = MATRICES - full * bucket
    part = full * LARGEST + max(rest / 8, min(rest, LARGEST))
    assert muon.memory["optimizer state"] == pytest.approx(8 * part + 12 * (TABLES + NORMS) / 8)
    assert adam.memory["optimizer state"] == pytest.approx(12 * (MATRICES + TABLES + NORMS) / 8)
    longer = 8 * part - MATRICES
    assert muon.memory["weights"] - adam.memory["weights"] == pytest.approx(2 * longer)
    assert muon.memory["gradients"] - adam.memory["gradients"] == pytest.approx(4 * longer)
    assert planned("muon", 0).predicted.time["optimizer"] / 8 < muon.time["optimizer"]
    assert muon.time["optimizer"] < planned("muon", 0).predicted.time["optimizer"] / 6


def test_narrow_moments_are_half_of_the_state() -> None:
    narrow = planned("adam", 1, exp_avg="bf16", exp_avg_sq="bf16").predicted
    adam = planned("adam", 1).predicted
    assert narrow.memory["optimizer state"] == adam.memory["optimizer state"] / 2
    assert narrow.time["optimizer"] < adam.time["optimizer"]
    assert planned("sgd", 1).predicted.memory["optimizer state"] == adam.memory["optimizer state"] * 8 / 12
