"""What `symconfig explain` says."""

from __future__ import annotations

import json
from dataclasses import replace

import symconfig
from symconfig.plans.sentences import chunk_layers
from symconfig.report.explanation import blocks, details, to_dict
from symconfig.report.grid import plain
from symconfig.report.table import stages
from symconfig.solve.explain import explain
from symconfig.solve.symbolic import symbolic
from tests.sample_plans import sample_plan


def test_every_stage_is_listed_with_its_layers() -> None:
    plan = sample_plan("llama3.1-70b", "h100")
    assert [row[:2] for row in stages(plan).rows] == [
        ("0", "embedding + 4 dense | 4 x (4 dense)"),
        ("1 to 2", "5 x (4 dense)"),
        ("3", "4 x (4 dense) | 4 dense + head"),
    ]


def test_stages_that_are_alike_say_between_which_peaks_they_lie() -> None:
    plan = sample_plan("llama3.1-70b", "h100")
    peaks = (50e9, 48e9, 46e9, 44e9)
    every = tuple(replace(stage, peak_bytes=peak) for stage, peak in zip(plan.best.stages, peaks, strict=True))
    rows = stages(replace(plan, best=replace(plan.best, stages=every))).rows
    assert [row[3] for row in rows] == ["46.57", "42.84 to 44.70", "40.98"]


def test_eighty_layers_that_take_turns_are_no_row_of_eighty_words() -> None:
    assert chunk_layers(("embedding", *("attention", "mamba") * 40, "head")) == (
        "embedding + 40 x (1 attention + 1 mamba) + head"
    )
    assert chunk_layers(("window", "full") * 3 + ("window",)) == "3 x (1 window + 1 full) + 1 window"
    assert chunk_layers(("a", "b", "a", "a", "b", "b", "a", "b")) == "4 a, 4 b in turns"
    assert chunk_layers(()) == "no layers"


def test_every_table_of_a_real_plan_is_shown() -> None:
    pins = {"tp": 2, "pp": 2}
    plan = symconfig.plan(model="llama2-7b", cluster="a100-80gb", gpus=8, global_batch_size=64, pins=pins).plan
    explained, costs = explain(plan), symbolic(plan, plan.best)
    text = plain([*blocks(plan), *details(explained, costs)])
    for expected in (
        "qkv_proj", "flash_attention", "weight-gradient", "all-gather", "reduce-scatter", "q_rotated",
        "The sharding of each tensor", "time.compute = ", "What moves the step", "tp 2 over nvlink",
        "Block dense (x 32)", "step reduce-scatter dp",
    ):  # fmt: skip
        assert expected in text
    data = json.loads(json.dumps(to_dict(plan, explained, costs), allow_nan=False))
    assert data["layer"]["kind"] == "dense"
    assert [block["kind"] for block in data["strategies"]["blocks"]] == ["embedding", "dense", "head"]
