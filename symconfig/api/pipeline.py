"""Stages and tensors solved together: `symconfig.pipeline(model=…, cluster=…, gpus=…, …, stages="1..8")`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from symconfig.api.arguments import typed
from symconfig.api.partition import PartitionResult
from symconfig.descriptor.mesh import Mesh
from symconfig.errors import InfeasibleError, Problem
from symconfig.format import gib, several, things
from symconfig.report.partition_stages import Staged, to_dict
from symconfig.solve.partition.pipeline.run import Pipeline
from symconfig.solve.partition.pipeline.run import pipeline as solve

if TYPE_CHECKING:
    from symconfig.api.graph_job import Asked


@dataclass(frozen=True)
class PipelineResult:
    """A step in stages, each with its own partition."""

    asked: Asked
    found: Pipeline

    @cached_property
    def stages(self) -> tuple[PartitionResult, ...]:
        """The partition of each stage, first to last; of a stage as a program, which receives and sends."""
        return tuple(PartitionResult(self._asked_of(stage.partition.ask), stage.partition) for stage in self.found.stages)

    def _asked_of(self, ask: Any) -> Asked:
        source = replace(self.asked.source, model=None, module="")
        return replace(self.asked, source=source, ask=ask)

    def said(self, top: int = 1) -> Staged:
        """Everything that the report shows. top: other ways of each operator."""
        found = self.found
        told = [one.said(top, framed=False) if found.like[n] == n else None for n, one in enumerate(self.stages)]
        whole = PartitionResult(self.asked, found.stages[0].partition)
        subject, job = whole.headline
        return Staged(subject, job, self.asked.ask, found, tuple(one or told[found.like[n]] for n, one in enumerate(told)))

    def to_dict(self) -> dict[str, Any]:
        """The JSON contract, `symconfig.pipeline/1`: see `symconfig.report.partition_stages`."""
        return to_dict(self.said())


@typed
def pipeline(
    model: Any = None,
    cluster: Any = None,
    gpus: int | None = None,
    global_batch_size: int | None = None,
    seq_length: int | None = None,
    *,
    stages: int | str = "1..8",
    program: str | Path | None = None,
    module: str | None = None,
    mesh: str | Path | Mesh | None = None,
    solver: str = "auto",
    memory_limit: str | float | None = None,
    flat: bool = True,
    num_microbatches: int | None = None,
    recompute: str = "auto",
    limit_s: float | None = None,
    precision: str = "auto",
) -> PipelineResult:
    """The fastest cut into stages, with a split of every operator in each. Arguments mean what the options of
    `symconfig partition --stages` mean. Raises InputError (all problems at once), InfeasibleError when nothing fits.
    """
    from symconfig.api.graph_job import asked

    given: Mapping[str, Any] = {
        "model": model, "program": program, "module": module, "cluster": cluster, "gpus": gpus, "mesh": mesh,
        "global_batch_size": global_batch_size, "seq_length": seq_length, "solver": solver, "stages": stages,
        "memory_limit": memory_limit, "flat": flat, "num_microbatches": num_microbatches, "recompute": recompute,
        "limit_s": limit_s, "precision": precision,
    }  # fmt: skip
    return answered(asked(given))


def answered(asked: Asked) -> PipelineResult:
    """Raises InfeasibleError when nothing fits, and says what would."""
    assert asked.stages is not None
    found = solve(asked.source.programs, asked.ask, *asked.stages)
    if found is None:
        raise _infeasible(asked, *asked.stages)
    return PipelineResult(asked, found)


def _infeasible(asked: Asked, least: int, most: int) -> InfeasibleError:
    """Names the fullest stage of what would be fastest, and the numbers of stages or of GPUs that would do."""
    free = solve(asked.source.programs, replace(asked.ask, memory_limit=np.inf), least, most)
    words = several(least, "stage") if least == most else f"{least} to {most} stages"
    what = f"no pipeline of {words} was found that fits in memory"
    if free is not None:
        number, fullest = max(enumerate(free.stages), key=lambda one: one[1].memory)
        what += (
            f": with {things(free.turns, 'microbatch')} the fastest holds {gib(fullest.memory)} GiB on stage "
            f"{number + 1} of {len(free.stages)}, of {gib(asked.ask.memory_limit)} GiB"
        )
    other = solve(asked.source.programs, asked.ask, 1, asked.mesh.gpus)
    hint = f"--stages {len(other.stages)}" if other is not None else "more GPUs, or a smaller batch or sequence"
    return InfeasibleError(Problem(what, hint=hint))
