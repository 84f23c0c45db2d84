"""What one layout costs, from Python: `symconfig.estimate("llama3.1-8b", "h100", 64, pins={"tp": 2})`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from symconfig.api.existing import audit
from symconfig.api.planning import AnyCluster, job_fields, loaded_cluster, read_job
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import Document
from symconfig.descriptor.load import zoo_clusters
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem, SymconfigError
from symconfig.render import target_of
from symconfig.report import estimate as report
from symconfig.report.grid import Block
from symconfig.runs.best import prepared
from symconfig.solve.estimate import Estimate, with_defaults
from symconfig.solve.estimate import estimate as priced

_PHASES = ("rl", "preference", "sequences")  # sections of a job


@dataclass(frozen=True, slots=True)
class EstimateResult:
    """An estimate. fits_on: the same layout, or the problem, on each cluster of the zoo; empty unless asked for."""

    estimate: Estimate
    fits_on: Mapping[str, Estimate | Problem]

    @property
    def runs(self) -> bool:
        """Return whether it fits and the framework refuses nothing."""
        return self.estimate.fits and not self.estimate.refused

    def blocks(self) -> list[Block]:
        return report.blocks(self.estimate, self.fits_on)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract of `symconfig estimate --json`."""
        return report.to_dict(self.estimate, self.fits_on)


def estimate(
    model: str | Path | ModelDescriptor | None = None,
    cluster: AnyCluster | None = None,
    gpus: int | None = None,
    global_batch_size: int | None = None,
    seq_length: int | None = None,
    *,
    script: str | Path | None = None,
    fits_on: bool = False,
    **more: Any,
) -> EstimateResult:
    """Return memory by stage and part and step time of one layout, whether or not it fits; nothing is searched.

    The layout is given by `pins` (others are the plain defaults) or, with `script`, read from a script as by `audit`;
    global_batch_size is ignored then. cluster: required. gpus: by default the product of the pinned degrees and `dp`,
    which must be pinned. global_batch_size: by default one micro-batch for each stage of each replica. fits_on: also an
    estimate, or the first problem, on each cluster of the zoo. more: as for `plan`, or for `audit` with a script.
    Raises InputError, also for jobs with phases (rl, preference, sequences).
    """
    given = {"model": model, "gpus": gpus, "global_batch_size": global_batch_size, "seq_length": seq_length, **more}
    if script is not None:
        del given["global_batch_size"]
        return of_all(lambda on: of_script(script, on, given), cluster, fits_on=fits_on)
    document = Document(job_fields(given), file="")
    return of_all(
        lambda on: of_job(document, on, model if isinstance(model, ModelDescriptor) else None), cluster, fits_on=fits_on
    )


def of_all(
    price: Callable[[AnyCluster], Estimate], cluster: AnyCluster | None, *, fits_on: bool = False
) -> EstimateResult:
    """Return the estimate on `cluster` and, with `fits_on`, on each cluster of the zoo (without it {}), where a
    SymconfigError is recorded as its first problem. Raises the errors on `cluster`, and InputError if that is None.
    """
    if cluster is None:
        raise InputError("this field is missing", field="cluster", hint="symconfig list clusters")
    other: dict[str, Estimate | Problem] = {}
    for name in zoo_clusters() if fits_on else ():
        try:
            other[name] = price(name)
        except SymconfigError as error:
            other[name] = error.problems[0]
    return EstimateResult(price(cluster), other)


def of_job(
    document: Document,
    cluster: AnyCluster,
    model: ModelDescriptor | None = None,
    *,
    model_base: Path | None = None,
    cluster_base: Path | None = None,
    problems: tuple[Problem, ...] = (),
) -> Estimate:
    """Return the estimate of a job's layout on a cluster, with defaults for what the job leaves open. cluster replaces
    the document's. model: None: loaded by the document's name. model_base, cluster_base: folders for relative paths.
    Raises InputError, also for jobs with rl, preference or sequences; problems: the caller's, raised with those of
    reading the job.
    """
    on = cluster if isinstance(cluster, ClusterDescriptor) else None
    fields = with_defaults({**document.data, "cluster": on.name if on is not None else cluster})
    if phases := [name for name in _PHASES if fields.get(name) or fields.get("task") == name]:
        raise InputError("has phases that only plan prices", field=phases[0], hint="symconfig plan")
    job = read_job(
        replace(document, data=fields), model, on, model_base=model_base, cluster_base=cluster_base, problems=problems
    )
    as_run, prepared_job = prepared(job.model, job.cluster, job.job)
    return priced(as_run, job.cluster, target_of(as_run, prepared_job).assuming(prepared_job))


def of_script(source: str | Path, cluster: AnyCluster, given: Mapping[str, Any]) -> Estimate:
    """Return the audit's estimate of a script's run on a cluster, without a search. given: keywords of `audit`. Raises
    InputError if the run cannot be predicted (with the reason) or its plan has several steps (phases).
    """
    done = audit(source, loaded_cluster(cluster), plan=False, **given)
    if done.judged is None:
        raise InputError(done.unpredicted)
    if done.judged.plan.steps:
        raise InputError("has phases that only audit prices", file=done.reading.file, hint="symconfig audit")
    return done.judged
