"""A plan made again: solved for changed inputs, held against the old one, and told what it means for the run; or solved
beforehand for every smaller number of nodes, for when some are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.training import WholeTraining
from symconfig.errors import InfeasibleError, InputError, Problem, SymconfigError
from symconfig.format import count
from symconfig.plans import TOP
from symconfig.plans.history import History
from symconfig.plans.plan import Plan
from symconfig.plans.sentences import batch_nearby
from symconfig.render import own_target, render, shared, target_of
from symconfig.runs.best import best_plan
from symconfig.runs.checkpoint.folder import Checkpoint, shown
from symconfig.runs.checkpoint.loadable import Saving, loadable, of_folder, savings
from symconfig.runs.checkpoint.table import Loadable, table
from symconfig.runs.replan.changes import Changes, NearPlan, changed, nearest
from symconfig.runs.replan.diff import Difference, differences, inputs
from symconfig.runs.replan.schedule import Batch, Mode, Schedule, scheduled
from symconfig.solve.run import with_defaults

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """A new plan compared with the old one.

    inputs: differing inputs. files: rendered files that differ, plan.json excluded; None if they cannot be compared.
    other_batch: a sentence on a close batch size that more replicas could share. edited: edited inputs of the old plan
    file, for which its answer was not computed.
    """

    old: Plan
    new: Plan
    inputs: tuple[Difference, ...]
    changes: Changes
    near_plan: NearPlan | None
    schedule: Schedule
    checkpoint: Loadable
    files: tuple[str, ...] | None
    other_batch: str | None = None
    edited: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Return whether no decision and no derived value changed."""
        return not self.changes.decisions and not self.changes.follows

    @property
    def options(self) -> tuple[str, ...]:
        """Return the words that the new run's command needs to resume: the checkpoint's options, then the schedule's.
        `--load CHECKPOINT` comes first unless the options have --load.
        """
        words = [*self.checkpoint.options("new")]
        words += [word for word in self.schedule.options if word not in words]
        return tuple(words if "--load" in words else ["--load", "CHECKPOINT", *words])

    @property
    def going_on(self) -> str | None:
        """Return the target's command that resumes the run; None if the target has no known one."""
        command = target_of(self.new.model, self.new.job).resume_command
        return command(self.new, self.options) if command is not None else None

    @property
    def targets(self) -> tuple[str, str]:
        """Return the (old, new) plan's target names."""
        return own_target(self.old), own_target(self.new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The inputs of the new plan.

    step: iterations done; None: as the checkpoint or the old plan states. edited: edited inputs of the old plan file,
    for which its answer was not computed.
    """

    model: ModelDescriptor
    cluster: ClusterDescriptor
    job: Job
    step: int | None = None
    mode: Mode = "keep"
    checkpoint: Checkpoint | None = None
    top: int = TOP
    edited: tuple[str, ...] = ()


def replanned(old: Plan, wishes: Wishes, progress: Progress | None = None) -> Replan:
    """Return the new plan and its comparison with the old one: inputs, changed decisions, whether the checkpoint loads,
    schedule, files, and a plan that keeps more old choices. The new plan's job has the converted schedule, its history
    that of the run. Raises InputError for invalid wishes, InfeasibleError if nothing fits.
    """
    wanted, (schedule, doubts) = wishes, _schedule(old, wishes)
    wishes = replace(wishes, job=wishes.job.model_copy(update={"training": schedule.training}))
    new = best_plan(wishes.model, wishes.cluster, wishes.job, top=wishes.top, progress=progress)
    loads = _loads(old, new, wishes.checkpoint)
    schedule = _as_loaded(schedule, loads, old, wanted)
    schedule = replace(schedule, notes=(*schedule.notes, *(doubts if schedule.step else ())))
    new = replace(new, job=new.job.model_copy(update={"training": schedule.training}), history=schedule.history)
    near = nearest(old, new, loads, lambda plan: _loads(old, plan, wishes.checkpoint))
    return Replan(
        old=old,
        new=new,
        inputs=differences(inputs(old), inputs(new)),
        changes=changed(old, new),
        near_plan=near,
        schedule=schedule,
        checkpoint=loads,
        files=_files(old, new),
        other_batch=batch_nearby(new),
        edited=wishes.edited,
    )


def _schedule(old: Plan, wishes: Wishes) -> tuple[Schedule, tuple[str, ...]]:
    """Return (schedule from the wanted step or the checkpoint's on, sentences of `_reached`). An InputError names the
    checkpoint's folder if the step is the checkpoint's.
    """
    try:
        run, doubts = _reached(old, wishes)
        return _scheduled(old, wishes, run), doubts
    except InputError as error:
        if wishes.step is not None or wishes.checkpoint is None or wishes.checkpoint.iteration is None:
            raise
        at = partial(replace, file=str(wishes.checkpoint.folder), field=None)
        problems = (at(one, what=f"its step {one.what}") if one.field == "at_step" else one for one in error.problems)
        raise InputError(list(problems)) from None


def _reached(old: Plan, wishes: Wishes) -> tuple[History, tuple[str, ...]]:
    """Return (history of the run up to the step, sentences): one sentence if the checkpoint's number of sequences
    contradicts the plan's history, else (). The step is the wished one, else the checkpoint's, else the old plan's.
    Sequences that the checkpoint states replace the history's. Raises InputError for a step before the plan's own or
    other than the checkpoint's.
    """
    saved, batch, length = wishes.checkpoint, old.best.configuration.global_batch, old.best.configuration.seq_length
    if saved is not None and saved.iteration is not None and wishes.step not in (None, saved.iteration):
        what = "is not where the checkpoint is, at which a run that loads it goes on"
        need, hint = f"{saved.iteration}, as in {saved.data}, or nothing", "--checkpoint with the folder of that step"
        raise InputError(what, field="at_step", got=str(wishes.step), need=need, hint=hint)
    step = wishes.step if saved is None or wishes.step is not None else saved.iteration
    sequences = saved.says.get("consumed_train_samples", saved.says.get("sequences")) if saved is not None else None
    if not isinstance(sequences, int) or not step:
        return old.history.until(step, batch, length), ()
    if not target_of(old.model, old.job).counts.renumbers:
        run = counted = old.history.until(step, batch, length)
        apart = sequences != counted.sequences
    else:  # train.py numbers steps by sequences: those of the plan before this one have other numbers
        run, counted = old.history.until(sequences // batch, batch, length), History().until(step, batch, length)
        apart = run.step not in (step, old.history.step)
    doubt = f"the checkpoint has seen {count(sequences)} sequences, and {counted} are {count(counted.sequences)}"
    return run.seen(sequences), (f"{doubt}: its own number counts",) if apart else ()


def _scheduled(
    old: Plan, wishes: Wishes, run: History, restarts: bool = False, past: History | None = None
) -> Schedule:
    """Return the schedule converted to the wished batch and sequence length, for a run resumed after `run`. restarts:
    the scheduler restarts at 0; past: the old plan's history if that is not resumed. Raises InputError for a step after
    the run's end.
    """
    job = wishes.job
    known = with_defaults(wishes.model, wishes.cluster, job)
    assert known.seq_length is not None
    counts = target_of(wishes.model, job).counts
    return scheduled(
        WholeTraining.of(known.training),
        Batch(old.best.configuration.global_batch, old.best.configuration.seq_length),
        batch=job.global_batch_size,
        seq_length=known.seq_length,
        counting=counts,
        run=run,
        mode=wishes.mode,
        restarts=restarts,
        past=past or History(),
    )


def _as_loaded(schedule: Schedule, loads: Loadable, old: Plan, wishes: Wishes) -> Schedule:
    """Return the schedule for what the checkpoint really restores; `schedule` itself at step 0 or if nothing of it is
    lost. If the checkpoint does not load, or loses the iteration, it is a whole run from step 0 (`lost` has the step);
    if only the scheduler's state is lost, the scheduler restarts.
    """
    lost = table().lost
    if not schedule.step or (loads.loads and not {lost["iteration"], lost["schedule"]} & set(loads.lost)):
        return schedule
    if not loads.loads or lost["iteration"] in loads.lost:
        return replace(_scheduled(old, wishes, History(), past=old.history), lost=schedule.step)
    return _scheduled(old, wishes, schedule.run, restarts=True)


def _loads(old: Plan, new: Plan, saved: Checkpoint | None) -> Loadable:
    return loadable(old, new) if saved is None else of_folder(saved, new, old)


def _files(old: Plan, new: Plan) -> tuple[str, ...] | None:
    """Return the names of rendered files that differ (plan.json excluded); None if the targets differ or one cannot
    be rendered.
    """
    target = own_target(new)
    if own_target(old) != target:
        return None
    try:
        before, after = ({item.path: item.text for item in render(plan, target)} for plan in (old, new))
    except SymconfigError:
        return None
    names = dict.fromkeys((*before, *after))
    return tuple(name for name in names if before.get(name) != after.get(name) and name != "plan.json")


@dataclass(frozen=True, slots=True)
class Smaller:
    """The plan after `lost` nodes: `nodes` remain with `gpus` GPUs in all.

    plan: the best one; None if nothing fits, with `problems`. every: whether a checkpoint of the full plan loads, for
    each way of `savings`. other_batch: as of `Replan`.
    """

    lost: int
    nodes: int
    gpus: int
    plan: Plan | None
    every: Mapping[Saving, Loadable]
    problems: tuple[Problem, ...] = ()
    other_batch: str | None = None

    @property
    def loads(self) -> Loadable | None:
        """Return whether the checkpoint that the rendered files write loads; None without a plan."""
        return next(iter(self.every.values()), None)


@dataclass(frozen=True, slots=True)
class Fallback:
    """A plan and its plans for fewer nodes, the most nodes first."""

    plan: Plan
    nodes: shared.Nodes
    smaller: tuple[Smaller, ...]

    @property
    def advised(self) -> Saving | None:
        """Return the way to save with which the most smaller plans load the checkpoint whole without a conversion, the
        first of equals; None if that is the default one. Numbers of nodes without a plan are ignored.
        """
        ways, planned = savings(self.plan), [each for each in self.smaller if each.plan is not None]
        best = min(ways, key=lambda way: sum(not each.every[way].verdict.unconverted for each in planned))
        return None if best == ways[0] else best

    def advisedly(self, each: Smaller) -> Loadable | None:
        """Return whether the checkpoint loads in a smaller plan if saved as `advised`; None without advice or plan."""
        return None if self.advised is None else each.every.get(self.advised)

    @property
    def runs(self) -> tuple[tuple[int, Plan], ...]:
        """Return (nodes, plan) of all numbers of nodes with a plan, descending, the full cluster first."""
        return (self.nodes.count, self.plan), *((each.nodes, each.plan) for each in self.smaller if each.plan)

    def share(self, each: Smaller) -> float | None:
        """Return tokens per second per GPU over the full cluster's (scaling efficiency); None without a plan."""
        if each.plan is None:
            return None
        return each.plan.best.predicted.tokens_per_s_per_gpu / self.plan.best.predicted.tokens_per_s_per_gpu


def fallback(plan: Plan, lost: Sequence[int], *, top: int, progress: Progress | None = None) -> Fallback:
    """Return the plans after losing these numbers of nodes, each once and rising, for the same job but its GPUs. top:
    candidates of each. A number of nodes on which nothing fits is recorded, not raised. Raises InputError if `lost` is
    empty or a number is not from 1 to the plan's nodes less one, or as `best_plan`.
    """
    nodes = shared.nodes(plan)
    wrong = [number for number in lost if not 1 <= number < nodes.count]
    if wrong or not lost:
        raise InputError(
            "a plan of one node has none to lose"
            if nodes.count == 1
            else f"cannot lose so many of {nodes.count} nodes",
            field="lose_nodes",
            got=shown(list(map(str, wrong))) or "none",
            need="a plan of more nodes" if nodes.count == 1 else "1" if nodes.count == 2 else f"1 to {nodes.count - 1}",
        )
    return Fallback(plan, nodes, tuple(_without(plan, nodes, each, top, progress) for each in sorted(set(lost))))


def _without(plan: Plan, nodes: shared.Nodes, lost: int, top: int, progress: Progress | None) -> Smaller:
    """Return the best plan without `lost` nodes, and whether the full plan's checkpoint loads in it, for each way to
    save. If its ZeRO stage is another one, a plan with the full plan's stage replaces it where there is one. If nothing
    fits, the result has `problems` and no plan. progress: called with a phase that names the nodes.
    """
    left = nodes.count - lost
    gpus = left * nodes.gpus

    def of(phase: str, share: float) -> None:
        if progress is not None:
            progress(f"{left} of {nodes.count} nodes, {phase}", share)

    job, stage = plan.job.model_copy(update={"gpus": gpus}), plan.best.configuration.zero_stage
    try:
        rest = best_plan(plan.model, plan.cluster, job, top=top, progress=of)
    except InfeasibleError as error:
        return Smaller(lost, left, gpus, None, {}, error.problems)
    if rest.best.configuration.zero_stage != stage:  # the optimizer's state loads only where sharded as it was saved
        kept = job.model_copy(update={"pins": {**job.pins, "zero": str(stage)}})
        with suppress(InputError, InfeasibleError):
            rest = best_plan(plan.model, plan.cluster, kept, top=top, progress=of)
    loads = {way: loadable(plan, rest, way.kind) for way in savings(plan)}
    return Smaller(lost, left, gpus, replace(rest, history=plan.history), loads, other_batch=batch_nearby(rest))
