"""Whole plans of both models, over every degree and ZeRO stage: bytes of each stage and seconds of a step, by part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.oracle import plan as oracle
from tests.oracle.given import Model, Run
from tests.oracle.grid import MODELS, runs
from tests.oracle.judged import judged
from tests.oracle.pipeline import end
from tests.oracle.step import time

EVERY_MODEL = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
# The judged program counts what a recomputed collective takes among both of these, and so less of the third: it is
# their sum that must be right. `test_parts_where_nothing_is_recomputed` has them apart.
PASSES = ("compute", "recompute", "layer communication")


@EVERY_MODEL
def test_bytes_of_every_stage(model: Model) -> None:
    for run in runs(model):
        for stage, (got, wanted) in enumerate(
            zip(judged(model, run).memory(), oracle.memory(oracle.plan(model, run)), strict=True)
        ):
            assert got == pytest.approx(wanted, rel=1e-9), (run, stage)


@EVERY_MODEL
def test_bytes_in_use_on_the_fullest_device(model: Model) -> None:
    for run in runs(model):
        peak = max(sum(parts.values()) for parts in oracle.memory(oracle.plan(model, run)))
        assert judged(model, run).device == pytest.approx(oracle.device(peak), rel=1e-9), run


@EVERY_MODEL
def test_seconds_of_a_step(model: Model) -> None:
    for run in runs(model):
        got = judged(model, run).time()
        got["passes"] = sum(got.pop(name) for name in PASSES)
        wanted = time(oracle.plan(model, run))
        if run.pp == 1:
            assert wanted.pop("pipeline send/receive") == 0
        assert got == pytest.approx(wanted, rel=1e-9, abs=1e-12), run


@EVERY_MODEL
def test_parts_where_nothing_is_recomputed(model: Model) -> None:
    for run in runs(model):
        if run.modules or run.first or run.beside:
            continue
        got, stages = judged(model, run).time(), oracle.stages(oracle.plan(model, run))
        slowest = max(stages, key=lambda stage: stage.seconds)
        if run.pp > 2 and slowest.index in (0, run.pp - 1):
            continue  # what it waits for messages may make another stage the slowest
        assert got["recompute"] == 0
        sent = (slowest.forward_comm + slowest.backward_comm) * run.microbatches
        assert got["layer communication"] == pytest.approx(sent, rel=1e-9), run


PIPELINES = [
    Run(pp=pp, vpp=v, microbatches=m) for pp, v, m in ((2, 1, 1), (2, 1, 4), (4, 1, 3), (8, 1, 8), (2, 2, 4), (4, 2, 8))
]
HOW = [{}, {"modules": frozenset({"layer"})}, {"tp": 8, "sp": True}]


@EVERY_MODEL
@pytest.mark.parametrize("how", HOW, ids=["kept", "recomputed", "over nodes"])
def test_a_pipelines_step_pass_by_pass(model: Model, how: dict[str, Any]) -> None:
    for run in (replace(run, **how) for run in PIPELINES):
        got = judged(model, run).simulated()
        passes = sum(got[name] for name in (*PASSES, "pipeline send/receive", "pipeline bubble"))
        assert passes == pytest.approx(end(oracle.plan(model, run)), rel=1e-9), run
