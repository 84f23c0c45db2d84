"""Sweeps whose plans come at once, where planning is not the subject."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from symconfig.descriptor.yaml_strict import parse_yaml_strict
from symconfig.runs.sweep import engines
from symconfig.runs.sweep.columns import COLUMNS
from symconfig.runs.sweep.job import SweepJob, sweep_job
from symconfig.runs.sweep.planner import planner
from symconfig.runs.sweep.task import Row, Status, Task

SMALL = """\
job: {cluster: h100, seq_length: 2048}
sweep:
  model: [llama2-7b, qwen2.5-7b-lora]
  gpus: [8, {from: 16, to: 64, times: 2}]
  global_batch_size: [64, 128]
"""
_OF_KIND: dict[str, Any] = {"text": "x", "whole": 1, "number": 1.0, "yes/no": False}
PLANNED: dict[str, Any] = {
    **{column.name: _OF_KIND[column.kind] for column in COLUMNS if column.of is not None},
    "gpus": 8,
    "step_s": 2.0,
    "mfu": 0.5,
    "tokens_per_s": 1e4,
    "gpu_hours": 10.0,
    "seq_length": 2048,
    "dp": 8,
}  # what the columns hold of a plan


def read(text: str) -> SweepJob:
    return sweep_job(parse_yaml_strict(text, "SWEEP.yaml"), None)


def planned(task: Task) -> Row:
    return Row(task.id, Status.PLANNED, planner(), "", PLANNED)


def replace_engine(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Task], Row], name: str = "instant") -> list[Task]:
    """`--engine NAME`, which then is the only one, answers at once; returns what it was given."""
    given: list[Task] = []

    def run(tasks: Sequence[Task], wanted: engines.Wanted) -> Iterator[Row]:
        for task in tasks:
            given.append(task)
            yield answer(task)

    module = ModuleType(name)
    module.__dict__.update(NAME=name, check=lambda wanted: None, run=run)
    monkeypatch.setattr(engines, "engines", lambda: {name: module})
    return given


def file_of(folder: Path, text: str = SMALL) -> Path:
    path = folder / "SWEEP.yaml"
    path.write_text(text, encoding="utf-8")
    return path
