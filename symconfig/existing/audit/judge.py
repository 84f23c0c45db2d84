"""What a run costs: the planner's own candidate and plan of it, of which nothing was searched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job, Limits
from symconfig.errors import InputError, Problem
from symconfig.existing.recover.run import Run
from symconfig.frameworks.known import BACKENDS
from symconfig.install import VERSION
from symconfig.plans.columns import Columns
from symconfig.plans.plan import Plan, Search
from symconfig.solve import candidate
from symconfig.solve.found import Found
from symconfig.solve.predict import as_found


@dataclass(frozen=True, slots=True)
class Judged:
    """plan: the run as a plan, whose best and only candidate it is."""

    run: Run
    plan: Plan

    @property
    def fits(self) -> bool:
        return self.plan.best.predicted.device_bytes <= self.plan.usable_bytes

    @property
    def overfull(self) -> tuple[int, ...]:
        """Stages that take more than the GPU has to give."""
        fixed = self.plan.best.predicted.device_bytes - max(stage.peak_bytes for stage in self.plan.best.stages)
        return tuple(
            number
            for number, stage in enumerate(self.plan.best.stages)
            if stage.peak_bytes + fixed > self.plan.usable_bytes
        )


def judge(run: Run, cluster: ClusterDescriptor, limits: Limits) -> Judged:
    """Raises InputError where the degrees do not fit the model."""
    job, found = job_of(run, cluster, limits), as_found(run.described.model, cluster, run.configuration)
    if wrong := list(_undivided(found)):
        raise InputError(wrong)
    found = replace(found, request=replace(found.request, job=job))
    best = replace(candidate.detail(found, cluster, job, best=True), target=run.target, options=run.options)
    fits = best.predicted.device_bytes <= limits.usable_bytes(cluster.gpu.memory_bytes.value)
    plan = Plan(
        model=run.described.model,
        cluster=cluster,
        job=job,
        best=best,
        alternatives=(),
        search=Search(1, int(fits), 0.0, False),
        binding="nothing was searched",
        symconfig_version=VERSION,
    )
    return Judged(run, plan)


def _undivided(found: Found) -> Iterator[Problem]:
    """Yield what cannot be divided like this, so that a figure for it would be one for nothing."""
    fixed, point = found.request.limits.fixed, _one(found.columns())
    for constraint in found.refused():
        if constraint.divides:
            yield Problem(constraint.said(fixed, point), field=constraint.about, hint=constraint.hint)


def _one(points: Columns) -> Columns:
    """Return the only point of columns, its numbers plain."""
    arrays = {
        each.name: value for each in fields(points) if isinstance(value := getattr(points, each.name), np.ndarray)
    }
    return replace(points, **{name: value.item() for name, value in arrays.items()})


def job_of(run: Run, cluster: ClusterDescriptor, limits: Limits) -> Job:
    """The job that the run is an answer to: the planner may choose everything else."""
    configuration, model = run.configuration, run.described.model
    return Job.model_validate(
        {
            "model": run.described.zoo or model.name,
            "cluster": cluster.name,
            "gpus": configuration.degrees.world_size,
            "global_batch_size": configuration.global_batch,
            "seq_length": configuration.seq_length,
            "backend": run.target.backend,
            "precision": configuration.precision,
            "task": "lora" if model.adapter else "pretrain",
            "limits": limits.model_dump(),
            **BACKENDS[run.target.backend].releases.fields(run.target.version),
        }
    )
