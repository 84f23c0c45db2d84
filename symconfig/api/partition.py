"""The tensor solver from Python: `symconfig.partition(model=…, cluster=…, gpus=…, …)`, and `symconfig.pipeline`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from symconfig.cost.partition.costs import Objective
from symconfig.descriptor.mesh import Mesh
from symconfig.errors import InfeasibleError, InputError
from symconfig.format import gib, microbatches, seconds, several
from symconfig.report.partition import Contents, Staged, names_of
from symconfig.report.partition_json import stages_dict, to_dict
from symconfig.solve.partition.account import Moved, Spent, collectives, spent
from symconfig.solve.partition.pipeline.run import Pipeline
from symconfig.solve.partition.pipeline.run import pipeline as solve_pipeline
from symconfig.solve.partition.placements import Placements, placements, python
from symconfig.solve.partition.problem import price
from symconfig.solve.partition.rewritten import Rewritten, rewritten_partition
from symconfig.solve.partition.run import Case, Partition, baselines, costs_of, excluded, infeasible, nearest
from symconfig.solve.partition.run import partition as solve_partition

if TYPE_CHECKING:
    from symconfig.api.partition_job import PartitionJob


@dataclass(frozen=True)
class PartitionResult:
    """A solved partition with its explanations, placements and reports. rewritten: what was done to the graph, and
    gained; None if it was to stay.
    """

    asked: PartitionJob
    found: Partition
    rewritten: Rewritten | None = None

    @property
    def strategies(self) -> Mapping[str, str]:
        """Return {operator or parameter ("weight of NAME"): its split by mesh level, in words}, in the net's order."""
        from symconfig.solve.partition.rows import worded

        nodes = zip(self.found.net.nodes, self.found.rows, strict=True)
        return {
            ("weight of " if node.parameter is not None else "") + node.name: worded(node, row, self.found.axes)
            for node, row in nodes
        }

    @cached_property
    def collectives(self) -> tuple[Moved, ...]:
        return collectives(self.found.costs, self.found.axes, self.found.rows)

    @cached_property
    def spent(self) -> Spent:
        return spent(self.found.costs, self.found.axes, self.found.rows)

    def baselines(self) -> Mapping[str, Partition | None]:
        """Return {well-known strategy: its best partition by the adaptive solver; None if none fits}."""
        return baselines(self.asked.source.programs, self.found)

    def placements(self) -> Placements:
        """Return the DTensor device mesh and the placements of all parameters and modules."""
        return placements(self.found.net, self.found.axes, np.array(self.found.rows, dtype=np.int64))

    def placements_file(self) -> str:
        """Return the placements as Python source with `distribute(module, mesh)`. Raises InputError if the graph of a
        model or module was rewritten.
        """
        if self.asked.source.kind != "program":
            self._check_as_given(self.asked.source.kind)
        return python(self.placements())

    def _check_as_given(self, kind: str) -> None:
        """Raise InputError if the graph was rewritten. kind: what runs the graph that it was given: module, model."""
        if self.rewritten is not None and self.rewritten.taken:
            what = f"the partition is of the rewritten graph, and the {kind} runs the one that it was given"
            raise InputError(what, field="rewrite", need="a partition without it")

    def distribute(self, module: Any, device_type: str = "cuda") -> Any:
        """Replace every parameter of the PyTorch module by a DTensor as `placements_file` does, on a mesh of all ranks
        of the process group, and return the module. Raises InputError if the graph was rewritten.
        """
        self._check_as_given("module")
        from torch.distributed import init_device_mesh

        file: dict[str, Any] = {}
        exec(self.placements_file(), file)
        mesh = init_device_mesh(device_type, file["MESH_SHAPE"], mesh_dim_names=file["MESH_DIM_NAMES"])
        return file["distribute"](module, mesh)

    @property
    def headline(self) -> tuple[str, str]:
        """Return (subject, job) as texts: graph, number and product of GPUs and cluster; and what applies of global
        batch, tokens, a precision other than bf16, unfused attention, and each pin ("" if none).
        """
        job, source = self.asked, self.asked.source
        sizes = [
            f"global batch {source.batch:,}" if source.batch is not None else "",
            f"{source.seq_length:,} tokens" if source.seq_length is not None else "",
            job.ask.precision if job.ask.precision != "bf16" else "",
            "unfused attention" if source.unfused else "",
            *(f"pinned {pin.text}" for pin in job.ask.pins),
        ]
        subject = f"{source.name} on {job.mesh.gpus:,} x {job.cluster.gpu.product} ({job.cluster.name})"
        return subject, ", ".join(size for size in sizes if size)

    def contents(self, baselines: bool = False, explained: tuple[int, ...] = ()) -> Contents:
        """Return the contents of the report. baselines: also solve for the well-known strategies ({} else). explained:
        numbers of operators to show in full. Notes are the program's and, for the objective symtensor, what its cost
        leaves out.
        """
        partition = self.found
        subject, job = self.headline
        return Contents(
            subject=subject,
            job=job,
            partition=partition,
            moved=self.collectives,
            spent=self.spent,
            compared=self.baselines() if baselines else {},
            explained=explained,
            notes=(*partition.net.program.notes, *self._left_out()),
            names=names_of(partition.net),
            rewritten=self.rewritten,
        )

    def _left_out(self) -> tuple[str, ...]:
        """Return one note on what the relative cost leaves out, with this partition's seconds under the objective time;
        () if that was the objective.
        """
        partition = self.found
        if partition.costs.timed:
            return ()
        case, ask = Case(partition.net, partition.costs.training), replace(partition.ask, objective=Objective.TIME)
        step_s, _ = price(costs_of(case, ask, partition.axes), np.array(partition.rows, dtype=np.int64))
        return (
            "the relative cost counts every element that moves alike, whichever link it crosses, and neither the "
            "number of messages, nor computation, nor what hides behind it, nor a pipeline; this partition takes "
            f"{seconds(step_s)} s a step",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract, `symconfig.partition/3`: see `symconfig.report.partition_json`."""
        return to_dict(self.contents())


def partition(
    model: Any = None,
    cluster: Any = None,
    gpus: int | None = None,
    global_batch_size: int | None = None,
    seq_length: int | None = None,
    **fields: Any,
) -> PartitionResult:
    """Return the best split of all operators and tensors. Arguments: the fields of GraphJob, which are the options of
    `symconfig partition`. Raises InputError with all problems, InfeasibleError if nothing fits.
    """
    from symconfig.api.partition_job import partition_job

    named = {"model": model, "cluster": cluster, "gpus": gpus, "global_batch_size": global_batch_size}
    return solved_partition(partition_job({**named, "seq_length": seq_length, **fields}))


def auto_parallel(module: Any, inputs: Any, cluster: Any, gpus: int | None = None, **fields: Any) -> PartitionResult:
    """Return the best split of a PyTorch module for these example inputs (a tuple, a dict, or one tensor);
    `.distribute(module)` applies it. The module is not changed. fields: others of GraphJob. Raises InputError with all
    problems, InfeasibleError if nothing fits.
    """
    from symconfig.graph.program.torch_source.factory import program_of_module

    return partition(cluster=cluster, gpus=gpus, program=program_of_module(module, inputs), **fields)


def solved_partition(job: PartitionJob) -> PartitionResult:
    """Return the solved partition. Raises InfeasibleError, with what would fit, if nothing does, and InputError if a
    graph that may be rewritten has too many operators.
    """
    if job.rewrite and (best := rewritten_partition(job.source.programs, job.ask)) is not None:
        source = replace(job.source, programs=best.programs)
        return PartitionResult(replace(job, source=source), best.partition, best)
    if job.rewrite or (solved := solve_partition(job.source.programs, job.ask)) is None:
        raise infeasible(job.source.programs, job.ask, job.grown)
    return PartitionResult(job, solved)


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
        """Return the JSON contract, `symconfig.pipeline/2`: see `symconfig.report.partition_json`."""
        return stages_dict(self.contents())


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
    """Return the fastest cut into pipeline stages, with a split of all operators in each. stages: how many, or a range.
    Other arguments: the fields of GraphJob. Raises InputError with all problems, InfeasibleError if nothing fits.
    """
    from symconfig.api.partition_job import partition_job

    named = {"model": model, "cluster": cluster, "gpus": gpus, "global_batch_size": global_batch_size}
    return solved_pipeline(partition_job({**named, "seq_length": seq_length, "stages": stages, **fields}))


def solved_pipeline(job: PartitionJob) -> PipelineResult:
    """Return the solved pipeline. Raises InfeasibleError, with what would fit, if nothing does."""
    assert job.stages is not None, "a job without stages is a partition"
    pipeline = solve_pipeline(job.source.programs, job.ask, *job.stages)
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
    free = solve_pipeline(job.source.programs, replace(job.ask, memory_limit=np.inf), least, most)
    words = several(least, "stage") if least == most else f"{least} to {most} stages"
    if free is None and job.ask.pins:
        if least == 1 or solve_pipeline(job.source.programs, replace(job.ask, memory_limit=np.inf), 1, 1) is None:
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
    other = solve_pipeline(job.source.programs, job.ask, 1, job.mesh.gpus)
    if other is not None:
        hint = f"--stages {len(other.stages)}, which takes {seconds(other.step_s)} s a step"
        return InfeasibleError(what, hint=hint)

    def fits(mesh: Mesh) -> bool:
        return solve_pipeline(job.source.programs, replace(job.ask, mesh=mesh), least, least) is not None

    return InfeasibleError(what, hint=nearest(job.grown, 3, fits))
