"""Phases of an actor that one H100 ran (benchmarks/gpu/actor.py; torch 2.11.0+cu130), against the prediction.

Where a phase is a part of an update, the whole update is predicted: its passes and the optimizer's step.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.load import load_cluster, load_model
from symconfig.runs.rl.logits import VERL_FSDP, VERL_FSDP_SCALED
from symconfig.runs.rl.phases import GAPS
from symconfig.runs.rl.trained import GRADIENTS, STATES, WEIGHTS, Trained
from tests.sample_plans import aimed, sample_plan

ROWS = [json.loads(line) for line in Path("benchmarks/gpu/actor_h100.jsonl").read_text().splitlines()]
READS = [row for row in ROWS if row["phase"] == "read"]
UPDATES = [row for row in ROWS if row["phase"] == "update"]
STEPPED = {row["model"]: row for row in ROWS if row["phase"] == "optimizer"}
WORKSPACES = 64 * 2**20  # of cuBLAS and cuBLASLt, in every row


def actor(row: dict[str, Any]) -> Trained:
    """The actor of a row, on its one GPU."""
    recompute = {"recompute": "full", "recompute_method": "uniform"} if row["recompute"] else {}
    shape = {"micro": row["sequences"], "seq_length": row["length"], "global_batch": row["sequences"]}
    how: dict[str, Any] = {"tp": 1, "pp": 1, "dp": 1, "zero_stage": 3, **recompute, **shape}
    plan = aimed(sample_plan(load_model(row["model"]), load_cluster("h100"), "fsdp", **how), "verl-fsdp")
    logits = VERL_FSDP if row["temperature"] == 1 else VERL_FSDP_SCALED
    return Trained(plan, plan.best, 1.0, logits, point=Trained(plan, plan.best, 1.0, logits).prospect, frozen=True)


def named(row: dict[str, Any]) -> str:
    words = [name for name in ("recompute", "entropy") if row[name]]
    return "-".join([row["model"], f"{row['sequences']}x{row['length']}", f"{row['temperature']:g}", *words])


@pytest.mark.parametrize("row", READS, ids=named)
def test_a_read_takes_what_is_predicted_to_the_byte(row: dict[str, Any]) -> None:
    own = actor(row)
    predicted = own.memory[WEIGHTS] + own.memory[STATES] + own.forward_bytes(entropy=row["entropy"])
    assert row["allocated_bytes"] - WORKSPACES == pytest.approx(predicted, rel=2e-3)


@pytest.mark.parametrize("row", UPDATES, ids=named)
def test_an_update_takes_what_is_predicted(row: dict[str, Any]) -> None:
    """To the byte but where layers, and not logits or the optimizer, have the peak: too much by 5 % at most."""
    predicted = actor(row).peak_bytes(entropy=row["entropy"])
    if row.get("out_of_memory"):
        assert predicted > 79.18 * 2**30
        return
    measured = max(row["allocated_bytes"], STEPPED[row["model"]]["allocated_bytes"]) - WORKSPACES
    assert measured * 0.998 < predicted < measured * (1.06 if row["temperature"] == 1 else 1.01)


@pytest.mark.parametrize("row", [row for row in UPDATES if "reserved_bytes" in row], ids=named)
def test_gaps_that_come_and_go_are_about_as_predicted(row: dict[str, Any]) -> None:
    own = actor(row)
    rest, peak = sum(own.memory[name] for name in (WEIGHTS, GRADIENTS, STATES)), own.peak_bytes(row["entropy"])
    predicted = max(own.reserved(peak), rest + (peak - rest) * (1 + GAPS))
    measured = max(row["reserved_bytes"], STEPPED[row["model"]]["reserved_bytes"])
    assert measured * 0.96 < predicted < measured * 1.07


@pytest.mark.parametrize("name", ["llama3.2-1b", "llama3.2-3b"])
def test_the_optimizer_has_the_roots_of_all_second_moments(name: str) -> None:
    row = STEPPED[name]
    memory = actor(row).memory
    predicted = memory[WEIGHTS] + memory[STATES] + 2 * memory[GRADIENTS]
    assert row["allocated_bytes"] - WORKSPACES == pytest.approx(predicted, rel=1e-3)


@pytest.mark.parametrize("name", ["llama3.2-1b", "llama3.2-3b"])
def test_the_optimizer_moves_what_its_operators_read_and_write(name: str) -> None:
    """Clipped and stepped, operator by operator: a fused kernel would have taken 0.4 of it. Within 5 % while
    the memory's rate on H100 also made up for what sources do otherwise."""
    predicted = float(actor(STEPPED[name]).parts.cost.time["optimizer"].max())
    assert predicted == pytest.approx(STEPPED[name]["seconds"], rel=0.07)
