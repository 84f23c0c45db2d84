"""Plans made again: `symconfig.replan("out/plan.json", gpus=32)`, `diff(a, b)`, `whatif`, `replan_lost_nodes`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from symconfig.api.files import Wanted, files, put
from symconfig.api.planning import AnyPlan, PlanResult, check_top, job_fields
from symconfig.descriptor.cluster import ClusterDescriptor, joined
from symconfig.descriptor.document import Document
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model, with_changes
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import validate
from symconfig.descriptor.tuning import check_batch, with_batch
from symconfig.errors import InputError, Problem, Problems
from symconfig.format import json_text
from symconfig.plans import TOP
from symconfig.plans.file import edited, loaded
from symconfig.plans.plan import ANSWER, Plan
from symconfig.runs.adapted import as_trained, bare
from symconfig.runs.best import best_plan
from symconfig.runs.checkpoint.read import read
from symconfig.runs.replan.diff import Diff, revised
from symconfig.runs.replan.diff import diff as compared
from symconfig.runs.replan.replanned import Fallback, Replan, Wishes, fallback, replanned
from symconfig.runs.replan.schedule import Mode
from symconfig.solve import pins as pin_values

if TYPE_CHECKING:
    from symconfig.render.files import Files
    from symconfig.runs.whatif import Case, WhatIf

MOST_STEPS = 10**9
FALLBACK = "fallback.json"


@dataclass(frozen=True, slots=True)
class ReplanResult:
    """A new plan (`new`) with the reasons for what changed (`found`)."""

    found: Replan

    @property
    def old(self) -> Plan:
        return self.found.old

    @property
    def new(self) -> PlanResult:
        return PlanResult(self.found.new)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract of `symconfig replan --json`."""
        from symconfig.report.replan import replan_data

        return replan_data(self.found)


def replan(
    plan: AnyPlan,
    *,
    release: Iterable[str] = (),
    checkpoint: str | Path | None = None,
    at_step: int | None = None,
    schedule: Mode = "keep",
    accept_edits: bool = False,
    top: int = TOP,
    changes: Mapping[str, str] = MappingProxyType({}),
    problems: Sequence[Problem] = (),
    progress: Callable[[str, float], None] | None = None,
    **wishes: Any,
) -> ReplanResult:
    """Return the plan of a recorded job with some inputs replaced, and what changes for the run.

    plan: a plan, its file or folder. wishes: fields of JOB.yaml; pins are added to the recorded ones less those in
    `release`. checkpoint: the run's folder. at_step: iterations done (None: the checkpoint's, else those done when the
    old plan took over). schedule: "keep": the same tokens and learning rate over them; "as-is": the same iterations.
    accept_edits: accept an edited plan file; an edited answer is solved again first. changes: of fields of the wished
    cluster, else of the recorded one. problems: the caller's, raised with those found here. Raises InputError (all
    problems at once, if the plan can be read), InfeasibleError when nothing fits.
    """
    model, cluster = wishes.get("model"), wishes.get("cluster")
    model = model if isinstance(model, ModelDescriptor) else None
    cluster = cluster if isinstance(cluster, ClusterDescriptor) else None
    wishes, release = job_fields(wishes), tuple(release)
    gathered = Problems(problems)
    old = gathered.collect(lambda: loaded(plan, accept_edits))
    file = Path(plan) if isinstance(plan, str | Path) else None
    changed = edited(file) if file is not None and old is not None and accept_edits else ()
    gathered.collect(lambda: check_top(top))
    if at_step is not None and not 0 <= at_step <= MOST_STEPS:
        gathered.add(Problem("out of range", field="at_step", got=str(at_step), need="a step from 0"))
    if schedule not in get_args(Mode):
        need = " or ".join(get_args(Mode))
        gathered.add(Problem("wrong value", field="schedule", got=repr(schedule), need=need))
    saved = gathered.read(read, None if checkpoint is None else Path(checkpoint))
    if old is not None:
        need = f"one of {', '.join(old.job.pins)}" if old.job.pins else "a plan with pins"
        for name in release:
            if name not in old.job.pins:
                gathered.add(Problem("is not pinned in the old plan", field="release", got=name, need=need))
    if old is None:
        raise InputError(gathered.all)
    named = wishes.get("cluster")
    if changes:  # the name of the cluster holds them
        wishes = {**wishes, "cluster": joined(str(wishes.get("cluster", old.job.cluster)), changes)}
    document = Document(revised(old, with_batch(Document(wishes, file="")).data, release), file="")
    with_section = {**wishes, "rl": document.data.get("rl")}  # the old section, where no other is wished for
    gathered.collect(lambda: check_batch(Document(with_section, file="")))
    job = gathered.collect(lambda: validate(document, Job))
    given = wishes.get("model")
    if model is None:
        model = gathered.collect(lambda: bare(old.model, old.job) if given is None else load_model(str(given)))
    cluster = gathered.collect(lambda: _cluster(old, named, cluster, changes))
    if job is not None:
        gathered.collect(lambda: pin_values.parse(job.pins))
    cluster = gathered.need(cluster)
    laid, laid_job = as_trained(gathered.need(model), gathered.need(job))
    before = old
    if set(changed) & set(ANSWER):  # then nothing but the inputs says what the run was
        solved = best_plan(old.model, old.cluster, old.job, top=1, progress=progress)
        before, changed = replace(solved, history=old.history), ()
    return ReplanResult(
        replanned(
            before,
            Wishes(
                model=laid,
                cluster=cluster,
                job=laid_job,
                step=at_step,
                mode=schedule,
                checkpoint=saved,
                top=top,
                edited=changed,
            ),
            progress,
        )
    )


def diff(before: AnyPlan, after: AnyPlan) -> Diff:
    """Return all choices and predicted parts in which two plans differ. Raises InputError if one cannot be read."""
    problems = Problems()
    one, other = problems.collect(lambda: loaded(before)), problems.collect(lambda: loaded(after))
    return compared(problems.need(one), problems.need(other))


def _cluster(old: Plan, name: object, given: ClusterDescriptor | None, changes: Mapping[str, str]) -> ClusterDescriptor:
    """Return the cluster of the new job: one named is loaded with `changes`; else the given descriptor or the recorded
    one, with `changes` applied. Raises InputError.
    """
    if given is None and name is not None:
        return load_cluster(joined(str(name), changes))
    cluster = given or old.cluster
    return with_changes(cluster, changes) if changes else cluster


def whatif(plan: AnyPlan, vary: Sequence[str], *, progress: Callable[[int], None] = lambda done: None) -> WhatIf:
    """Return over which ranges of values which plan is the best. plan: a result of `plan`, a file or its folder. vary:
    texts `NAME=LOW..HIGH`, each varied by itself. progress: called with the number of searches done. Raises InputError
    with all problems.
    """
    from symconfig.runs.whatif import varied
    from symconfig.runs.whatif import whatif as run

    one = loaded(plan)
    return run(one, varied(one, vary), progress)


def whatif_changes(
    plan: AnyPlan, changes: Sequence[Mapping[str, Any]], *, progress: Callable[[str, float], None] | None = None
) -> tuple[Case, ...]:
    """Return a Case for each change of the job: the plan with the old choices kept, and a new plan. changes: mappings
    of fields of the job, also `model` and `cluster`, to values, used as text. Raises InputError if there are none, or
    with all problems.
    """
    from symconfig.runs.whatif import through_changes

    if not changes:
        raise InputError("this argument is empty", field="changes", hint="global_batch_size=32")
    written = [{name: str(value) for name, value in change.items()} for change in changes]
    return through_changes(loaded(plan), written, progress)


@dataclass(frozen=True, slots=True)
class FallbackResult:
    """The plans for fewer nodes, with methods to write and convert them."""

    fallback: Fallback

    def write(
        self,
        out: str | Path,
        force: bool = False,
        target: str | None = None,
        launchers: Sequence[str] | None = None,
        templates: str | Path | None = None,
    ) -> list[Path]:
        """Write nodes-N/ for each plan, and, if the target has one, a launch.sh that picks the one for the nodes
        present; return the paths. All or none. Otherwise as `PlanResult.write`.
        """
        wanted = Wanted.of(target, launchers, templates)
        return put(lambda: fallback_files(self.fallback, wanted), Path(out), force)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract of `symconfig replan --lose-nodes --json`."""
        from symconfig.report.checkpoint import to_dict

        return to_dict(self.fallback)


def replan_lost_nodes(
    plan: AnyPlan,
    lose_nodes: int | tuple[int, int] = (1, 4),
    *,
    top: int = TOP,
    progress: Callable[[str, float], None] | None = None,
) -> FallbackResult:
    """Return plans for the cluster without `lose_nodes` nodes; (1, 4) is each of 1 to 4. plan: a plan, its file or
    folder. top: candidates of each. A size on which nothing fits has problems and no plan. Raises InputError, also for
    numbers not from 1 to the plan's nodes less one.
    """
    first, last = (lose_nodes, lose_nodes) if isinstance(lose_nodes, int) else lose_nodes
    check_top(top)
    return FallbackResult(fallback(loaded(plan), range(first, last + 1), top=top, progress=progress))


def fallback_files(fallback: Fallback, wanted: Wanted) -> Files:
    """Return the files of all plans in their folders nodes-N/, fallback.json and a manifest of all of them. If the
    first plan's files include launch.sh, a launch.sh (and other launchers) above the folders is added that picks one by
    the number of nodes. Raises InputError, InfeasibleError if the target cannot express a plan.
    """
    from symconfig.render.files import File, Files
    from symconfig.render.manifest import manifest
    from symconfig.render.several import above, node_folder
    from symconfig.render.target import LAUNCH
    from symconfig.report.checkpoint import advice, to_dict

    target, framework = wanted.of_plan(fallback.plan), fallback.plan.best.target.backend
    launchers = wanted.to_start(fallback.plan, target)
    # Only the framework's own files pass on to it, as they are, the options that launch.sh is given.
    advised = advice(fallback, "bash launch.sh" if target == framework else "")
    made = [
        replace(item, path=f"{node_folder(count)}/{item.path}")
        for count, plan in fallback.runs
        for item in files(plan, wanted)
    ]
    if any(item.path == f"{node_folder(fallback.runs[0][0])}/{LAUNCH}" for item in made):
        made = [*above(fallback.runs, launchers, advised), *made]
    made.append(File(FALLBACK, json_text(to_dict(fallback))))
    done = Files(tuple(made))
    return Files((*done, manifest(done, target, launchers, wanted.templates)))
