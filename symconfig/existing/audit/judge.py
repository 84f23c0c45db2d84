"""What a run costs: the planner's own candidate and plan of it, of which nothing was searched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import Document
from symconfig.descriptor.job import Job, Limits
from symconfig.descriptor.validate import problems
from symconfig.errors import InputError, Problem
from symconfig.existing.recover.run import Impossible, Run
from symconfig.existing.rules import megatron
from symconfig.existing.rules.deepspeed import GRID
from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.known import BACKENDS
from symconfig.solve.estimate import Estimate, priced
from symconfig.solve.predict import as_found
from symconfig.solve.prospect import Prospect
from symconfig.solve.whole import whole


@dataclass(frozen=True, kw_only=True)
class Judged(Estimate):
    """An estimate of a run."""

    run: Run

    @property
    def by_assumed_lengths(self) -> bool:
        """Return whether sequence lengths were assumed, so that memory that depends on them is uncertain."""
        return self.run.step is not None and self.run.step.assumed_lengths


def judge(run: Run, cluster: ClusterDescriptor, limits: Limits) -> Judged:
    """Return the estimated time and memory of a run, without a search.

    Raises InputError where degrees do not divide the model.
    """
    model = run.described.model
    job = whole(model, job_of(run, cluster, limits))
    prospect = as_found(model, cluster, run.configuration, job)
    if wrong := list(_undivided(prospect)):
        raise InputError(wrong)
    plan, memory = priced(prospect, cluster, job, target=run.target, options=run.options)
    return Judged(plan=plan, memory=memory, run=run)


def _undivided(prospect: Prospect) -> Iterator[Problem]:
    """Yield the refusals of constraints about divisibility.

    Other refused constraints do not keep a run from being predicted.
    """
    for constraint in prospect.refused():
        if constraint.divides:
            limits = prospect.request.limits
            yield Impossible(
                what=constraint.sentence_at(limits.fixed, prospect.columns().at(0)), rule=_rule(constraint)
            )


def _rule(constraint: Constraint) -> str:
    """Return the name of the audit's rule that has this constraint; the rule about the grid if none has."""
    named = (rule.name for rule in megatron.RULES if constraint in rule.constraints)
    return next(named, GRID)


def job_of(run: Run, cluster: ClusterDescriptor, limits: Limits) -> Job:
    """Return the job that the run solves: its model, cluster, GPUs, batch and precision, with all else left to the
    planner.

    Raises InputError for values that no job can have.
    """
    configuration, model = run.configuration, run.described.model
    fields = {
        "model": run.described.zoo or model.name,
        "cluster": cluster.name,
        "gpus": configuration.degrees.world_size,
        "global_batch_size": configuration.global_batch,
        "seq_length": configuration.seq_length,
        "packing": configuration.packing,
        "backend": run.target.backend,
        "precision": configuration.precision,
        **_task(run),
        **({} if run.program is None else {"target": run.program}),
        "limits": limits.model_dump(),
        "optimizer": run.optimizer.model_dump(exclude_unset=True) or {},
        **BACKENDS[run.target.backend].releases.fields(run.target.version),
    }
    try:
        return Job.model_validate(fields)
    except ValidationError as error:
        raise InputError(list(problems(error, Document(fields, file=""), Job))) from None


def _task(run: Run) -> dict[str, object]:
    """Return the fields of a job for its task: RL, preference, LoRA (if the model has an adapter) or pretraining."""
    if run.step is not None:
        return {"task": "rl", "rl": run.step.rl}
    if run.alone is not None and run.alone.preference is not None:
        return {"task": run.alone.preference.means.task, "preference": run.alone.preference}
    return {"task": "lora" if run.described.model.adapter else "pretrain"}
