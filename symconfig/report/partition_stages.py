"""The answer of `symconfig partition --stages`: where the graph is cut, what each stage runs on, and how it is split.

    {"schema": "symconfig.pipeline/2", "name", "job", "mesh": {"gpus", "levels"},
     "solution": {"step_s", "microbatches", "idle", "memory_limit_bytes", "layers", "solved"},
     "stages": [{"operators": {"first", "last", "count"}, "gpus", "microbatch_s", "once_s", "in_flight",
                 "memory_bytes", "keep", "like", "partition": …}]}

`layers`: what the operators were grouped into, between which a cut may be. `like`: the first stage, from 0, that is the
same and split the same way. `partition`: as `symconfig.partition/3`, of the stage with what it receives and sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from symconfig.format import count, gib, microbatches, milliseconds, percent, seconds, several, short
from symconfig.report.grid import Block, Grid
from symconfig.report.partition import KEPT, Contents, legend, meshed, stored, strategies
from symconfig.report.partition_json import levels
from symconfig.report.partition_json import to_dict as of_partition
from symconfig.solve.partition.pipeline.run import Pipeline
from symconfig.solve.partition.run import Ask

SCHEMA = "symconfig.pipeline/2"
_NAME = 30


@dataclass(frozen=True, slots=True)
class Staged:
    """The contents of a pipeline's report. ask: inputs of the whole pipeline. contents: of each stage."""

    subject: str
    job: str
    ask: Ask
    pipeline: Pipeline
    contents: tuple[Contents, ...]


def blocks(staged: Staged) -> list[Block]:
    """Return the report of a pipeline: headline, table of stages, then for each group of equal stages its operators and
    parameters once, the legend, and notes if there are any.
    """
    shown: list[Block] = [_headline(staged), _stages(staged)]
    like = staged.pipeline.like
    for number in dict.fromkeys(like):
        report = staged.contents[number]
        mine = [str(n + 1) for n, first in enumerate(like) if first == number]
        shown += [f"Stage{'s' * (len(mine) > 1)} {', '.join(mine)}", strategies(report), stored(report)]
    shown += legend(staged.contents[0])
    notes = "\n".join(f"Note: {note}" for note in staged.pipeline.program.notes)
    return [*shown, notes] if notes else shown


def _headline(staged: Staged) -> str:
    """Return the head: program; mesh; numbers of operators and layers; step time, stages, microbatches, idle share."""
    pipeline, ask = staged.pipeline, staged.ask
    return "\n".join(
        (
            f"{staged.subject}, {staged.job}".rstrip(", "),
            f"mesh: {meshed(ask.mesh)}, {count(ask.mesh.gpus)} GPUs",
            f"{several(len(pipeline.program.operators), 'operator')} in {several(len(pipeline.cuts) - 1, 'layer')}, "
            "between which it may be cut",
            "",
            f"{seconds(pipeline.step_s)} s a step in {several(len(pipeline.stages), 'stage')}, "
            f"{microbatches(pipeline.turns)}; {percent(pipeline.idle)} of it idle",
        )
    )


def _stages(staged: Staged) -> Grid:
    """Return the table of stages, numbered from 1: first and last operator, their number, GPUs, milliseconds of a
    microbatch and once a step, microbatches in flight, memory in GiB, and what is kept for the backward pass.
    """
    pipeline = staged.pipeline
    rows = []
    for number, stage in enumerate(pipeline.stages):
        operators = _names(pipeline, number)
        span = f"{short(operators[0], _NAME)} to {short(operators[-1], _NAME)}"
        rows.append(
            (
                str(number + 1), span, count(len(operators)), count(stage.gpus), milliseconds(stage.turn_s),
                milliseconds(stage.once_s), count(stage.alive), gib(stage.memory), KEPT[stage.keep],
            )
        )  # fmt: skip
    headers = ("stage", "operators", "", "GPUs", "ms a microbatch", "ms once", "in flight", "GiB", "")
    return Grid(headers, tuple(rows), left=(1, 8), title="Stages", fixed=(3,))


def to_dict(staged: Staged) -> dict[str, Any]:
    """Return the report as JSON, symconfig.pipeline/2: mesh, solution (seconds, microbatches, idle share, memory limit,
    numbers of layers and of solved partitions), and each stage with its partition.
    """
    pipeline, ask = staged.pipeline, staged.ask
    return {
        "schema": SCHEMA,
        "name": pipeline.program.name,
        "job": staged.job,
        "mesh": {"gpus": ask.mesh.gpus, "levels": levels(ask.mesh)},
        "solution": {
            "step_s": pipeline.step_s,
            "microbatches": pipeline.turns,
            "idle": pipeline.idle,
            "memory_limit_bytes": ask.memory_limit,
            "layers": len(pipeline.cuts) - 1,
            "solved": pipeline.solved,
        },
        "stages": [_stage(staged, number) for number in range(len(pipeline.stages))],
    }


def _stage(staged: Staged, number: int) -> dict[str, Any]:
    """Return stage `number` (from 0) as JSON: operators, GPUs, seconds, microbatches in flight, memory, partition."""
    stage, operators = staged.pipeline.stages[number], _names(staged.pipeline, number)
    return {
        "operators": {"first": operators[0], "last": operators[-1], "count": len(operators)},
        "gpus": stage.gpus,
        "microbatch_s": stage.turn_s,
        "once_s": stage.once_s,
        "in_flight": stage.alive,
        "memory_bytes": stage.memory,
        "keep": stage.keep.value,
        "like": staged.pipeline.like[number],
        "partition": of_partition(staged.contents[number]),
    }


def _names(pipeline: Pipeline, number: int) -> Sequence[str]:
    return [pipeline.program.operators[index].name for index in pipeline.operators(number)]
