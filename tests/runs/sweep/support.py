"""Sweeps whose plans come at once, where planning is not the subject."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.document import parse_yaml_strict
from symconfig.runs.sweep import run as sweeping
from symconfig.runs.sweep.columns import COLUMNS
from symconfig.runs.sweep.job import Points, points
from symconfig.runs.sweep.run import Row, Status, Task

SMALL = """\
job: {cluster: h100, seq_length: 2048}
sweep:
  model: [llama2-7b, qwen2.5-7b-lora]
  gpus: [8, 16, 32, 64]
  global_batch_size: [64, 128]
"""
PLANNED: dict[str, Any] = {
    **{column.name: 1 for column in COLUMNS if column.of is not None},
    "gpus": 8,
    "step_s": 2.0,
    "mfu": 0.5,
    "tokens_per_s": 1e4,
    "gpu_hours": 10.0,
    "seq_length": 2048,
    "dp": 8,
}  # what the columns hold of a plan


def read(text: str) -> Points:
    return points(parse_yaml_strict(text, "SWEEP.yaml"), None)


def planned(task: Task) -> Row:
    return Row(task.id, Status.PLANNED, values=PLANNED)


def replace_pool(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Task], Row]) -> list[Task]:
    """Plans come at once, from `answer`; returns what was asked for."""
    given: list[Task] = []

    def run(tasks: Sequence[Task], jobs: object) -> Iterator[Row]:
        for task in tasks:
            given.append(task)
            yield answer(task)

    monkeypatch.setattr(sweeping, "run_tasks", run)
    return given


def file_of(folder: Path, text: str = SMALL) -> Path:
    path = folder / "SWEEP.yaml"
    path.write_text(text, encoding="utf-8")
    return path
