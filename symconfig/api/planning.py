"""The planner as a Python function: `symconfig.plan(model=…, cluster=…, gpus=…, global_batch_size=…)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from symconfig.api.files import Wanted, files, page_files, put
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import Document
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model, located
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import validate
from symconfig.descriptor.tuning import check_batch, with_batch
from symconfig.errors import InputError, Problem, Problems, reworded
from symconfig.format import json_text, percent, seconds
from symconfig.frameworks.known import BACKENDS
from symconfig.plans import MOST_TOP, TOP
from symconfig.plans.plan import Candidate, Plan, Search
from symconfig.runs.best import UnsupportedError, best_plan, best_plan_anyway, manual_edits, other_backend, other_target
from symconfig.solve import pins as pin_values

if TYPE_CHECKING:
    from symconfig.report.timeline import Chart
    from symconfig.solve.symbolic import Symbolic


@dataclass(frozen=True, slots=True, repr=False)
class PlanResult:
    """A plan, with methods to write, draw and convert it.

    instead: why it is for another target than its framework's own; None if it is not. inexpressible: why its files
    cannot be written, with the targets that can; None if they can. other: the best plan of the other fine-tuning
    framework, if searched and found.
    """

    plan: Plan
    instead: str | None = None
    inexpressible: UnsupportedError | None = None
    other: Candidate | None = None

    @property
    def best(self) -> Candidate:
        return self.plan.best

    @property
    def alternatives(self) -> tuple[Candidate, ...]:
        """Return the other ranked candidates, best first."""
        return self.plan.alternatives

    @property
    def search(self) -> Search:
        return self.plan.search

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Return the model fields for which the framework's code must be edited by hand; () if none."""
        return manual_edits(self.plan)

    def megatron_args(self) -> list[str]:
        """Return the arguments of Megatron-LM's pretrain_gpt.py. Raises InfeasibleError if it cannot express them."""
        from symconfig.render import megatron

        return megatron.arguments(self.plan)

    def write(
        self,
        out: str | Path,
        force: bool = False,
        target: str | None = None,
        launchers: Sequence[str] | None = None,
        templates: str | Path | None = None,
    ) -> list[Path]:
        """Write all files of `target` (default: the plan's own) into `out`, all or none; return the paths. launchers:
        default: the target's. templates: folder of own templates. With `force` edited files are replaced, with a
        warning. Raises InputError if `out` exists without `force` or for unknown names, InfeasibleError if the target
        cannot express it.
        """
        wanted = Wanted.of(target, launchers, templates)
        return put(lambda: files(self.plan, wanted), Path(out), force)

    def timeline(self, candidate: int = 1) -> Chart:
        """Return the simulated step of a candidate (1: the best; others by rank): events, idle shares and memory.
        Raises InputError if there is no such candidate, or its shape cannot be simulated.
        """
        from symconfig.report.timeline import simulated

        return simulated(self.plan, self.plan.candidate(candidate))

    def symbolic(self, candidate: int = 1) -> Symbolic:
        """Return the costs of a candidate (1: the best) as SymPy expressions, with the numbers of their symbols. Raises
        InputError without such a candidate; so does access to the expressions without the extra `symbolic`.
        """
        from symconfig.solve.symbolic import symbolic

        return symbolic(self.plan, self.plan.candidate(candidate))

    def html(self) -> str:
        """Return the HTML page of `symconfig plan --html`."""
        from symconfig.report.page import plan_page

        return plan_page(self.plan, page_files(self.plan, Wanted()))

    def __repr__(self) -> str:
        """Return a line with model, GPUs, cluster and the best candidate; all fields would be some 20 kB."""
        from symconfig.report.page import sentence

        job = self.plan.job
        return f"<PlanResult of {self.plan.model.name} on {job.gpus} x {self.plan.cluster.name}: {sentence(self.plan)}>"

    def _repr_html_(self) -> str:
        """Return the page in a frame, for a notebook's cell."""
        from symconfig.report.page import framed

        return framed(self.html())

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract of `symconfig plan --json`: the plan, the search's seconds under "search", and under
        "warnings" the `remarks` and the model fields that need edits by hand.
        """
        data = self.plan.to_dict()
        data["search"] = {**data["search"], "seconds": round(self.plan.search.seconds, 6)}
        data["warnings"] = [*self.remarks, *map(str, self.warnings)]
        return data

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return up to three sentences: why another target is used, that the target supports not all of the model (and
        `--target` names that do), and how much slower or faster the other framework's best plan is.
        """
        sentences = [] if self.instead is None else [self.instead]
        if self.inexpressible is not None:
            fields = ", ".join(dict.fromkeys(problem.field or "" for problem in self.inexpressible.problems[:-1]))
            able = f" Try: --target {' or '.join(self.inexpressible.able)}" if self.inexpressible.able else ""
            target = self.inexpressible.problems[-1].got
            sentences.append(f"{target} does not support this model's {fields}: no files.{able}")
        if self.other is not None:
            label, step_s = BACKENDS[self.other.target.backend].label, self.other.predicted.step_s
            more = step_s / self.best.predicted.step_s - 1
            sentences.append(
                f"the best plan with {label} takes {seconds(step_s)} s, {percent(abs(more))} "
                f"{'more' if more > 0 else 'less'}: --backend {self.other.target.backend}"
            )
        return tuple(sentences)

    def to_json(self) -> str:
        """Return `to_dict` as text; `parse_plan` reads it back."""
        return json_text(self.to_dict())


AnyPlan = Plan | PlanResult | str | Path
AnyCluster = str | Path | ClusterDescriptor


def plan(
    model: str | Path | ModelDescriptor,
    cluster: AnyCluster,
    gpus: int | Literal["auto"],
    global_batch_size: int | None = None,
    seq_length: int | None = None,
    *,
    top: int = TOP,
    progress: Callable[[str, float], None] | None = None,
    **fields: Any,
) -> PlanResult:
    """Return the fastest configuration that fits in memory. Arguments mean what the fields of JOB.yaml mean; `fields`
    are the others. None is as good as absent. cluster: also a name with changes, "h100 with network=4x200Gb/s". top:
    number of candidates. Raises InputError (all problems at once) on bad input, InfeasibleError when nothing fits.
    """
    named = {"model": model, "cluster": cluster, "gpus": gpus, "seq_length": seq_length}
    document = Document(job_fields({**named, "global_batch_size": global_batch_size, **fields}), file="")
    given_model = None if isinstance(model, str | Path) else model
    given_cluster = cluster if isinstance(cluster, ClusterDescriptor) else None
    return solve(document, given_model, given_cluster, top=top, progress=progress)


def solve(
    document: Document,
    model: ModelDescriptor | None = None,
    cluster: ClusterDescriptor | None = None,
    *,
    model_base: Path | None = None,
    cluster_base: Path | None = None,
    top: int = TOP,
    writes: bool = False,
    compares: bool = False,
    problems: Sequence[Problem] = (),
    progress: Callable[[str, float], None] | None = None,
) -> PlanResult:
    """Return the plan of a document's job; model and cluster are loaded by the document's names unless given (paths
    relative to the bases).

    writes: model fields that the framework has only after edits by hand, not confirmed by the job, count as not
    expressible. compares: also search the other fine-tuning framework (`other`). problems: the caller's, raised with
    those found here. If no target can express the model, it is planned all the same, with `inexpressible` and neither
    `instead` nor `other`. Raises InputError with all problems and their lines, InfeasibleError when nothing fits.
    """
    gathered = Problems(problems)
    gathered.collect(lambda: check_top(top))
    job = read_job(document, model, cluster, model_base=model_base, cluster_base=cluster_base, problems=gathered.all)
    with reworded(job.document.stated):
        try:
            plan = best_plan(job.model, job.cluster, job.job, top=top, writes=writes, progress=progress)
        except UnsupportedError as error:
            plan = best_plan_anyway(job.model, job.cluster, job.job, error, top=top, progress=progress)
            return PlanResult(plan, inexpressible=error)
        other = other_backend(job.model, job.cluster, job.job, plan) if compares else None
        return PlanResult(plan, other_target(plan.model, plan.cluster, job.job, plan.job.target), other=other)


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A validated job with its model and cluster. document: as it was read."""

    model: ModelDescriptor
    cluster: ClusterDescriptor
    job: Job
    document: Document


def read_job(
    document: Document,
    model: ModelDescriptor | None = None,
    cluster: ClusterDescriptor | None = None,
    *,
    model_base: Path | None = None,
    cluster_base: Path | None = None,
    problems: Sequence[Problem] = (),
) -> LoadedJob:
    """Return the document's job with its model and cluster; those given are not loaded, and the batch in tokens becomes
    sequences. Relative paths start at the bases; those of critic and reward model become full paths. Raises InputError
    with all problems: the caller's, fields, names, pins.
    """
    found = Problems()
    found.collect(lambda: check_batch(document))
    document = with_batch(document)
    job = found.collect(lambda: validate(document, Job))
    names = document.data if isinstance(document.data, dict) else {}
    if model is None and isinstance(names.get("model"), str):
        model = found.collect(lambda: load_model(names["model"], model_base))
    if cluster is None and isinstance(names.get("cluster"), str):
        cluster = found.collect(lambda: load_cluster(names["cluster"], cluster_base))
    if (named := job) is not None:
        found.collect(lambda: pin_values.parse(named.pins))
        job = found.collect(lambda: _with_models(named, document, model_base))
    need = Problems((*problems, *map(document.placed, found.all))).need
    return LoadedJob(need(model), need(cluster), need(job), document)


def _with_models(job: Job, document: Document, base: Path | None) -> Job:
    """Return the job with critic's and reward model's names located: relative to the job file's folder, or `base` if
    the document is no file. Unchanged without `rl`. Raises InputError, under the field's name, if one is not found.
    """
    if job.rl is None:
        return job
    folder = Path(document.file).parent if Path(document.file).is_file() else base

    def whole(name: str | None, field: str) -> str | None:
        with reworded(lambda problem: replace(problem, field=field)):
            return None if name is None else located(name, folder)

    update: dict[str, object] = {"critic": whole(job.rl.critic, "rl.critic")}
    if (reward := job.rl.reward_model) is not None:
        named = whole(reward.model, "rl.reward_model.model")
        update["reward_model"] = reward.model_copy(update={"model": named})
    return job.model_copy(update={"rl": job.rl.model_copy(update=update)})


def loaded_cluster(cluster: AnyCluster) -> ClusterDescriptor:
    """Return the cluster of a name or a path; a descriptor unchanged. Raises InputError."""
    return cluster if isinstance(cluster, ClusterDescriptor) else load_cluster(str(cluster))


def check_top(top: int) -> None:
    """Raise InputError unless `top` is from 1 to MOST_TOP."""
    if type(top) is not int or not 1 <= top <= MOST_TOP:
        raise InputError("out of range", field="top", got=str(top), need=f"1 to {MOST_TOP}")


def job_fields(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments as fields of a job, without those that are None."""
    return {name: as_field(value) for name, value in arguments.items() if value is not None}


def as_field(value: Any) -> Any:
    """Return an argument as plain data of JOB.yaml: a descriptor's name; another model's set fields; a tuple as list, a
    mapping as dict, a path as text; anything else as it is.
    """
    if isinstance(value, ModelDescriptor | ClusterDescriptor):
        return value.name
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else str(value) if isinstance(value, Path) else value
