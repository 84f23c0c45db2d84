"""Stages and tensors solved together: `symconfig.pipeline(model=…, cluster=…, gpus=…, …, stages="1..8")`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from symconfig.api.partition import PartitionResult
from symconfig.descriptor.mesh import Mesh
from symconfig.errors import InfeasibleError
from symconfig.format import gib, microbatches, seconds, several
from symconfig.report.partition_stages import Staged, to_dict
from symconfig.solve.partition.pipeline.run import Pipeline
from symconfig.solve.partition.pipeline.run import pipeline as solve
from symconfig.solve.partition.run import excluded, nearest

if TYPE_CHECKING:
    from symconfig.api.partition_job import PartitionJob


@dataclass(frozen=True)
class PipelineResult:
    """A step in stages, each with its own partition."""

    asked: PartitionJob
    found: Pipeline

    @cached_property
    def stages(self) -> tuple[PartitionResult, ...]:
        """Return the partition of each stage, first to last; a stage is a program that receives and sends."""
        each = (stage.partition for stage in self.found.stages)
        return tuple(PartitionResult(replace(self.asked, ask=one.ask), one) for one in each)

    def contents(self) -> Staged:
        """Return the contents of the report; stages that equal an earlier one reuse its report, with their own
        partition and costs.
        """
        like = self.found.like
        reports = {number: self.stages[number].contents() for number in dict.fromkeys(like)}
        each = (
            replace(reports[first], partition=one.found, spent=one.spent)
            for first, one in zip(like, self.stages, strict=True)
        )
        subject, job = PartitionResult(self.asked, self.found.stages[0].partition).headline
        return Staged(subject, job, self.asked.ask, self.found, tuple(each))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract, `symconfig.pipeline/2`: see `symconfig.report.partition_stages`."""
        return to_dict(self.contents())


def pipeline(
    model: Any = None,
    cluster: Any = None,
    gpus: int | None = None,
    global_batch_size: int | None = None,
    seq_length: int | None = None,
    *,
    stages: int | str = "1..8",
    **fields: Any,
) -> PipelineResult:
    """Return the fastest cut into stages, with a split of all operators in each. Arguments as of `symconfig partition
    --stages`. Raises InputError with all problems, InfeasibleError if nothing fits.
    """
    from symconfig.api.partition_job import partition_job

    named = {"model": model, "cluster": cluster, "gpus": gpus, "global_batch_size": global_batch_size}
    return answered(partition_job({**named, "seq_length": seq_length, "stages": stages, **fields}))


def answered(job: PartitionJob) -> PipelineResult:
    """Return the solved pipeline. Raises InfeasibleError, with what would fit, if nothing does."""
    assert job.stages is not None, "a job without stages is a partition"
    pipeline = solve(job.source.programs, job.ask, *job.stages)
    if pipeline is None:
        raise _infeasible(job, *job.stages)
    return PipelineResult(job, pipeline)


def _infeasible(job: PartitionJob, least: int, most: int) -> InfeasibleError:
    """Return the error for a pipeline of `least` to `most` stages that was not found; solves again, with the largest
    number of microbatches.

    If pins alone exclude every cut, it names them; else it names the fullest stage of the fastest cut without memory
    limit (if any). Hint: the best number of stages from 1 to all GPUs if one fits, else the nearest larger mesh on
    which `least` stages fit.
    """
    job = replace(job, ask=replace(job.ask, turns=job.ask.turns[-1:]))  # which hold least
    free = solve(job.source.programs, replace(job.ask, memory_limit=np.inf), least, most)
    words = several(least, "stage") if least == most else f"{least} to {most} stages"
    if free is None and job.ask.pins:
        if least == 1 or solve(job.source.programs, replace(job.ask, memory_limit=np.inf), 1, 1) is None:
            return excluded(job.ask)
        what = f"no pipeline of {words} keeps to {' and '.join(pin.text for pin in job.ask.pins)}"
        return InfeasibleError(what, field="pin", hint="fewer stages, which have more GPUs each")
    what = f"no pipeline of {words} was found that fits in memory"
    if free is not None:
        number, fullest = max(enumerate(free.stages, 1), key=lambda one: one[1].memory)
        what += (
            f": the fastest holds {gib(fullest.memory)} of {gib(job.ask.memory_limit)} GiB on stage {number} of "
            f"{len(free.stages)}, at {microbatches(free.turns)}"
        )
    other = solve(job.source.programs, job.ask, 1, job.mesh.gpus)
    if other is not None:
        hint = f"--stages {len(other.stages)}, which takes {seconds(other.step_s)} s a step"
        return InfeasibleError(what, hint=hint)

    def fits(mesh: Mesh) -> bool:
        return solve(job.source.programs, replace(job.ask, mesh=mesh), least, least) is not None

    return InfeasibleError(what, hint=nearest(job.grown, 3, fits))
