"""Given configurations from Python: `symconfig.audit("launch.sh", cluster="h100")`, `symconfig.adapt(…)`, and what one
layout costs: `symconfig.estimate("llama3.1-8b", "h100", 64, pins={"tp": 2})`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig.api.files import Wanted, page_files
from symconfig.api.planning import AnyCluster, AnyPlan, job_fields, loaded_cluster, read_job
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import Document
from symconfig.descriptor.job import Limits
from symconfig.descriptor.load import load_model, zoo_clusters
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import validate
from symconfig.errors import MISSING_FIELD, InputError, Problem, Problems, SymconfigError
from symconfig.existing.audit.audit import Audit
from symconfig.existing.audit.audit import audit as judge
from symconfig.existing.launch.read import read
from symconfig.existing.launch.reading import Reading
from symconfig.existing.launch.text import below
from symconfig.existing.recover.run import Supplied
from symconfig.frameworks.megatron.flags import resolve
from symconfig.plans.file import loaded
from symconfig.render import target_of
from symconfig.runs.best import prepared
from symconfig.solve.estimate import Estimate, with_defaults
from symconfig.solve.estimate import estimate as priced

if TYPE_CHECKING:
    from symconfig.existing.adapt.draft import Adapted
    from symconfig.measured.comparison import Comparison
    from symconfig.report.grid import Block

_PHASES = ("rl", "preference", "sequences")  # sections of a job


def audit(
    source: str | Path,
    cluster: AnyCluster | None = None,
    gpus: int | None = None,
    *,
    model: str | Path | ModelDescriptor | None = None,
    seq_length: int | None = None,
    vocab_size: int | None = None,
    prompt_length: float | None = None,
    response_length: float | None = None,
    megatron_version: str | None = None,
    variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    root: str | Path | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    plan: bool = True,
    problems: Sequence[Problem] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Return the audit of a launch script or config: what it runs, what is wrong, and a better plan.

    source: a file, or a line of arguments; nothing is executed. cluster: None: nothing is predicted. gpus: None: as its
    launcher states. model, seq_length, vocab_size: used if the script does not state them. prompt_length,
    response_length: mean tokens, for reinforcement learning, which is predicted only with a cluster. variables,
    arguments: the script's environment and command line. root: folder below which files named by the script are read;
    None: the script's own. plan: whether to search for a better plan. problems: the caller's, raised with those found
    here. Raises InputError with all problems of arguments and source.
    """
    gathered = Problems(problems)
    known = None if cluster is None else gathered.collect(lambda: loaded_cluster(cluster))
    described = gathered.read(lambda of: of if isinstance(of, ModelDescriptor) else load_model(str(of)), model)
    for name, number in {"gpus": gpus, "seq_length": seq_length, "vocab_size": vocab_size}.items():
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            gathered.add(Problem("wrong value", field=name, got=str(number), need="a whole number above 0"))
    for name, length in {"prompt_length": prompt_length, "response_length": response_length}.items():
        if length is not None and (not isinstance(length, int | float) or isinstance(length, bool) or length < 1):
            gathered.add(Problem("wrong value", field=name, got=str(length), need="a number of at least 1"))
    kept = limits if isinstance(limits, Limits) else None
    if kept is None:
        kept = gathered.collect(lambda: validate(Document(dict(limits or {}), file=""), Limits))
    version = gathered.read(resolve, megatron_version)

    def opened() -> Reading:
        with below(root):
            return read(str(source), variables=dict(variables or {}), extra=tuple(arguments))

    reading = gathered.collect(opened)
    reading, kept = gathered.need(reading), gathered.need(kept)
    assumption = Supplied(described, gpus, seq_length, vocab_size, version, prompt_length, response_length)
    done = judge(reading, assumption, known, kept, plan=plan, progress=progress)
    if known is not None and done.stated is not None:
        from symconfig.runs.rl.stated import completed

        done = completed(done, known, kept, plan=plan, progress=progress)
    return done


def compare(audit: Audit, log: str | Path) -> Comparison:
    """Return the log of a running job compared with what an audit of its configuration predicts. Raises InputError if
    the log cannot be read or is of another job, or if nothing is predicted.
    """
    from symconfig.measured.comparison import compare as compared
    from symconfig.measured.training_log import read_log

    batch = None if audit.judged is None else audit.judged.plan.best.configuration.global_batch
    return compared(audit, read_log(Path(log), batch))


def audit_blocks(audit: Audit, log: Comparison | None = None) -> list[Block]:
    """Return the screen of an audit, followed by a log's comparison if there is one."""
    from symconfig.report.audit import blocks
    from symconfig.report.validation import comparison_blocks

    return blocks(audit) if log is None else [*blocks(audit), *comparison_blocks(log)]


def audit_data(audit: Audit, log: Comparison | None = None) -> dict[str, Any]:
    """Return the JSON contract of `symconfig audit --json`, with a log's comparison as `log` if there is one."""
    from symconfig.report.audit import to_dict
    from symconfig.report.validation import comparison_data

    return to_dict(audit) if log is None else to_dict(audit) | {"log": comparison_data(log)}


def audit_page(audit: Audit, source: str) -> str:
    """Return the HTML page of an audit, with the files of the better plan if there is one."""
    from symconfig.report import page

    return page.audit_page(audit, source, {} if audit.better is None else page_files(audit.better, Wanted()))


def adapt(
    source: str | Path,
    plan: AnyPlan,
    *,
    variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    root: str | Path | None = None,
) -> Adapted:
    """Return a user's files with a plan's values: `files` has their new bytes, `diff` the changes, `done` whether the
    whole plan is in them and an audit finds no error. Nothing is written. plan: a plan, its file or folder. variables,
    arguments: the script's environment and command line. root: folder below which files are read; None: the script's
    own. Raises InputError if the plan is for another model or the source cannot be read.
    """
    from symconfig.existing.adapt.files import adapted

    with below(root):
        return adapted(str(source), loaded(plan), dict(variables or {}), tuple(arguments))


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
        from symconfig.report.estimate import blocks

        return blocks(self.estimate, self.fits_on)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract of `symconfig estimate --json`."""
        from symconfig.report.estimate import to_dict

        return to_dict(self.estimate, self.fits_on)


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
        raise InputError(MISSING_FIELD, field="cluster", hint="symconfig list clusters")
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
