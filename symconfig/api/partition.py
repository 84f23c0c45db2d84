"""The tensor solver as a Python function: `symconfig.partition(model=…, cluster=…, gpus=…, global_batch_size=…)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from symconfig.cost.partition.costs import Keep, Objective, Training
from symconfig.descriptor.job import Job
from symconfig.errors import InputError
from symconfig.format import seconds
from symconfig.report.partition_contents import Contents, Telling, names_of
from symconfig.report.partition_json import to_dict
from symconfig.solve.partition.account import Spent, compared, spent
from symconfig.solve.partition.cheapest import Expressed, expressed, of_all
from symconfig.solve.partition.clock import Clock, clock
from symconfig.solve.partition.collectives import Moved, collectives
from symconfig.solve.partition.every import dense
from symconfig.solve.partition.frameworks import Framework, Step, blockers
from symconfig.solve.partition.infeasible import infeasible
from symconfig.solve.partition.placements import Placements, placements
from symconfig.solve.partition.priced import Priced
from symconfig.solve.partition.project import Projection, pins, project
from symconfig.solve.partition.reasons import Reason, Solved, reasons
from symconfig.solve.partition.run import Case, Partition, cases, costs_of
from symconfig.solve.partition.run import partition as solve

if TYPE_CHECKING:
    from symconfig.api.graph_job import GraphFields, PartitionJob
    from symconfig.api.planning import PlanResult

PLANNED = "a model of the zoo, or of a descriptor"


@dataclass(frozen=True)
class PartitionResult:
    """A solved partition, and what is said and done with it."""

    asked: PartitionJob
    found: Partition

    @property
    def strategies(self) -> Mapping[str, str]:
        """Spell what every folded operator does along the levels; parameters as `weight of …`."""
        from symconfig.solve.partition.strategy import worded

        nodes = zip(self.found.net.nodes, self.found.rows, strict=True)
        return {
            ("weight of " if node.parameter is not None else "") + node.name: worded(node, row, self.found.axes)
            for node, row in nodes
        }

    @cached_property
    def solved(self) -> Solved:
        partition = self.found
        return Solved(
            partition.costs, partition.axes, partition.rows, partition.cost, partition.ask.memory_limit, partition.gamma
        )

    def reasons(self, top: int = 1) -> tuple[Reason, ...]:
        """Return the next best ways of splitting every operator."""
        return reasons(self.solved, top)

    @cached_property
    def collectives(self) -> tuple[Moved, ...]:
        return collectives(self.found.costs, self.found.axes, self.found.rows)

    @cached_property
    def spent(self) -> Spent:
        return spent(self.found.costs, self.found.axes, self.found.rows, self.found.gamma)

    @cached_property
    def clock(self) -> Clock:
        """Count a step of this partition as the planner counts seconds, whatever was minimised."""
        timed = replace(self.found.ask, objective=Objective.TIME)
        case = Case(self.found.net, self.found.costs.training)
        return clock(costs_of(case, timed, self.found.axes), self.found.axes, self.found.rows)

    @cached_property
    def projection(self) -> Projection:
        """Project the partition onto the nearest of Megatron's and DeepSpeed's degrees."""
        return project(self.found.net, self.found.axes, np.array(self.found.rows, dtype=np.int64))

    @cached_property
    def expressed(self) -> tuple[Expressed, ...]:
        """Express the partition for each framework that takes any strategy: itself, or else the cheapest that fits.
        That has the same microbatches and what is kept; it is of all where nothing fits with those."""
        return expressed(self.found, self.projection, self._step, self._cases)

    @property
    def untold(self) -> Mapping[str, str]:
        """Return the reason of each framework that cannot express any strategy, where one reason is enough."""
        known, step = {one.by.framework for one in self.expressed}, self._step(self.found.costs.training)
        plain = [way for way, _ in dense(self.found.axes) if not way.sequence_parallel and way.cp_comm == "p2p"]
        missing = [framework for framework in Framework if framework not in known]
        pins = " and ".join(pin.text for pin in self.found.ask.pins)
        rest = [f"none of its splits keeps to {pins}"] if pins else []
        return {one.label: "; ".join([*blockers(one, step, plain), *rest][:1]) for one in missing}

    def _cases(self) -> tuple[Case, ...]:
        return tuple(cases(self.asked.source.programs, self.found.ask))

    def _step(self, training: Training) -> Step:
        source, turns = self.asked.source, training.turns
        batch = source.batch // turns if source.batch is not None else None
        architecture = self.asked.cluster.gpu.architecture
        version = Job.model_fields["megatron_version"].default
        return Step(
            turns=turns,
            model=source.model,
            batch=batch,
            seq_length=source.seq_length or 0,
            architecture=architecture,
            precision=self.found.ask.precision,
            megatron_version=version,
            attention=source.attention,
        )

    def baselines(self) -> list[Priced]:
        """Compare named strategies on the same graph, and the cheapest that each framework takes. Each has the best
        number of microbatches and of what is kept."""
        every, partition = self._cases(), self.found
        expressible = of_all(every, partition.ask, partition.axes, self._step, partition.gamma)
        return [*expressible, *compared(every, partition.ask, partition.axes, partition.gamma)]

    def placements(self) -> Placements:
        """Return the device mesh of PyTorch's DTensor, and the placements of every parameter and module."""
        return placements(self.found.net, self.found.axes, np.array(self.found.rows, dtype=np.int64))

    @property
    def chosen(self) -> Expressed:
        """Choose what is planned: the partition itself, else Megatron's cheapest that fits, or else DeepSpeed's. Raises
        InputError where neither can be told anything."""
        if not self.expressed:
            what = "neither Megatron-LM nor DeepSpeed can be told any split of this over these GPUs"
            raise InputError(what, got=self.projection.refused or self.asked.source.name)
        return min(self.expressed, key=lambda one: (not one.exact, not one.by.fits))

    def pins(self, one: Expressed | None = None) -> dict[str, str]:
        """Return the pins that make the planner choose these degrees; by default those of `chosen`."""
        degrees = (one or self.chosen).by
        return pins(degrees.way, (self.asked.source.batch or 1) // degrees.training.turns, degrees.framework.value)

    def plan(self, one: Expressed | None = None, **options: Any) -> PlanResult:
        """Plan with these degrees, by default those of `chosen`; options: of `symconfig.plan`. Raises InputError where
        no framework can be told anything, or the partition is of no model, InfeasibleError where the planner finds
        no room."""
        from symconfig.api.planning import plan

        job, given = self.asked, self.asked.source.model
        if given is None:
            raise InputError("only a model can be planned", got=job.source.name, need=PLANNED)
        degrees = (one or self.chosen).by
        assert job.source.batch is not None
        chosen = self.pins(one) | {"recompute": "full" if degrees.training.keep is Keep.BORDERS else "none"}
        wanted: dict[str, Any] = {
            "backend": degrees.framework.value, "pins": chosen, "precision": job.ask.precision,
            "attention": job.source.attention,
        } | options  # fmt: skip
        return plan(given, job.cluster, job.mesh.gpus, job.source.batch, job.source.seq_length, **wanted)

    def placements_file(self) -> str:
        """Write the placements as a Python file, whose `distribute(module, mesh)` places a module's parameters."""
        from symconfig.solve.partition.placements_file import python

        return python(self.placements())

    @property
    def headline(self) -> tuple[str, str]:
        """Name the partitioned program and the hardware, and the job."""
        job, source = self.asked, self.asked.source
        sizes = [
            f"global batch {source.batch:,}" if source.batch is not None else "",
            f"{source.seq_length:,} tokens" if source.seq_length is not None else "",
            job.ask.precision if job.ask.precision != "bf16" else "",
            "unfused attention" if source.attention == "unfused" else "",
            *(f"pinned {pin.text}" for pin in job.ask.pins),
        ]
        subject = f"{source.name} on {job.mesh.gpus:,} x {job.cluster.gpu.product} ({job.cluster.name})"
        return subject, ", ".join(size for size in sizes if size)

    def said(
        self, top: int = 1, baselines: bool = False, explained: tuple[int, ...] = (), framed: bool = True
    ) -> Contents:
        """Gather everything that the report shows. top: other ways of each operator. framed: with what frameworks can
        be told."""
        partition = self.found
        subject, job = self.headline
        return Contents(
            subject=subject,
            job=job,
            partition=partition,
            reasons=self.reasons(top),
            moved=self.collectives,
            spent=self.spent,
            clock=self.clock if framed else None,
            tellings=self._tellings() if framed else (),
            untold=self.untold if framed else {},
            compared=tuple(self.baselines()) if baselines else (),
            explained=explained,
            notes=(*partition.net.program.notes, *self._left_out()),
            names=names_of(partition.net),
        )

    def _tellings(self) -> tuple[Telling, ...]:
        model = self.asked.source.model
        return tuple(Telling(one, self.pins(one) if model is not None else {}) for one in self.expressed)

    def _left_out(self) -> tuple[str, ...]:
        """Name what the objective does not include."""
        if self.found.costs.timed:
            return ()
        return (
            "the relative cost counts every element that moves alike, whichever link it crosses, and neither the "
            "number of messages, nor computation, nor what hides behind it, nor a pipeline; by the planner's clock "
            f"this partition takes {seconds(self.clock.step_s)} s a step",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract, `symconfig.partition/1`: see `symconfig.report.partition_json`."""
        return to_dict(self.said())


def partition(
    model: Any = None,
    cluster: Any = None,
    gpus: int | None = None,
    global_batch_size: int | None = None,
    seq_length: int | None = None,
    *,
    objective: str = "time",
    gamma: float | Mapping[str, float] | None = None,
    **fields: Unpack[GraphFields],
) -> PartitionResult:
    """Find the best split of every operator and tensor. Arguments mean what the options of `symconfig partition` mean.

    Raises InputError (all problems at once), InfeasibleError when nothing fits.
    """
    from symconfig.api.graph_job import partition_job

    named = {"model": model, "cluster": cluster, "gpus": gpus, "global_batch_size": global_batch_size}
    sought = {"seq_length": seq_length, "objective": objective, "gamma": gamma}
    return answered(partition_job({**named, **sought, **fields}))


def answered(job: PartitionJob) -> PartitionResult:
    """Solve a partition; raise InfeasibleError when nothing fits, with what would."""
    solved = solve(job.source.programs, job.ask)
    if solved is None:
        raise infeasible(job.source.programs, job.ask, job.grown)
    return PartitionResult(job, solved)
