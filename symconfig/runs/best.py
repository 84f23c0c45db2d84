"""A job's best plan: the target that it is for, what that target can never express of it, and the search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, InputError, Problem, SymconfigError
from symconfig.frameworks.behaviour import PROGRAMS
from symconfig.frameworks.known import BACKENDS, built
from symconfig.frameworks.megatron.adapters import as_laid
from symconfig.plans.plan import Candidate, Plan, sketch
from symconfig.render import target_of, targets
from symconfig.render.target import Target
from symconfig.runs.adapted import as_trained
from symconfig.solve.pins import agree
from symconfig.solve.run import with_defaults

# Fields of a job that the planner never decides. A model's own fields are such, too.
_INPUTS = (
    frozenset({"model", "cluster", "training", "seq_length", "task", "packing", "precision", "optimizer"})
    | {"sequences", "preference", "rl"}
    | ModelDescriptor.model_fields.keys()
)

# Fields of a job that name whose files it wants.
NAMED = frozenset({"target", "backend", "megatron_version"})
# Targets in the order in which they are taken where a job names none and its framework's own cannot express it; all
# others follow by name.
_PREFERRED = ("bridge", "deepspeed", "slime")


class UnsupportedError(InfeasibleError):
    """A target can express no plan of a job. able: names of the targets that can, of any backend."""

    def __init__(self, problems: Sequence[Problem], able: Sequence[str] = ()) -> None:
        super().__init__(problems)
        self.able = tuple(able)


def best_plan(
    model: ModelDescriptor,
    cluster: ClusterDescriptor,
    job: Job,
    *,
    top: int,
    writes: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> Plan:
    """Return the best plan of a job, with up to `top` candidates; for RL, preferences or sequences with the step's
    phases.

    writes: files are wanted, so fields that need a manual edit and are not in `job.edited` are refused. A job without
    target, backend and release is solved for another target if its default cannot express the model. progress: called
    with (phase, share). Raises InputError for invalid jobs, UnsupportedError before the search if the target can
    express no plan, InfeasibleError if nothing fits (with a sentence on the chosen target, if it is another one).
    """
    wanted = job
    model, job = prepared(model, cluster, job)
    target = supported(model, cluster, job, writes=writes)

    def solve(of: ModelDescriptor, job: Job, most: int) -> Plan:
        """Return the plan of another model or job on this cluster, for that job's target."""
        return solved(of, cluster, job, top=most, progress=progress)

    if target.rl is not None:
        from symconfig.runs.rl.choose import answer as step
        from symconfig.runs.rl.layouts import Question

        source = target_of(model, target)
        learns = source.learns
        assert learns is not None, "other targets are refused"
        rl = target.rl.with_engine(learns.engines[0])
        refined = target.model_copy(update={"rl": rl, "target": source.name})
        critic = _of_values(model, rl.critic) if rl.has_critic else None
        named = rl.reward_model
        reward = None if named is None or named.placement == "server" else _of_values(model, named.model)
        return step(Question(model, cluster, refined, rl, critic, solve, reward, learns), top)
    if target.preference is not None or target.sequences is not None:
        from symconfig.runs.rl.tuned import answer as tuned

        return tuned(target, lambda update, most: solve(model, update, most), target_of(model, target), top)
    try:
        plan = solve(model, target, top)
    except InfeasibleError as error:
        if (why := other_target(model, cluster, wanted, job.target)) is None:
            raise
        raise InfeasibleError([*error.problems, Problem(why, field="target")]) from None
    return replace(plan, job=plan.job.model_copy(update={"edited": job.edited}))


def solved(
    model: ModelDescriptor,
    cluster: ClusterDescriptor,
    job: Job,
    *,
    top: int,
    progress: Callable[[str, float], None] | None = None,
    writes: bool = True,
) -> Plan:
    """Return the plan of one search, without phases around it, with up to `top` candidates. Job fields that are not set
    have the values that the target assumes. Raises InputError for a job that can never run, and InfeasibleError if
    nothing fits, or (unless `writes` is False) the target cannot express the best plan.
    """
    from symconfig.solve.search import search  # needs NumPy

    target = target_of(model, job)
    named = target.assuming(job).model_copy(update={"target": target.name})
    plan = search(model, cluster, named, top=top, progress=progress)
    if (target.name, named.backend) not in PROGRAMS:  # else it is priced as this program runs it, also when read back
        plan = replace(plan, job=plan.job.model_copy(update={"target": job.target}))
    if writes:
        target.checked_variables(plan)
    return plan


def best_plan_anyway(
    model: ModelDescriptor,
    cluster: ClusterDescriptor,
    job: Job,
    refusal: UnsupportedError,
    *,
    top: int,
    progress: Callable[[str, float], None] | None = None,
) -> Plan:
    """Return the best plan of a job whose target refused the model, as if it could express it; no files can be rendered
    from it. refusal: the target's; raised again if a problem of it, but the last one, is about no field of the model or
    about its adapter, if the job names a target or has RL, preferences or sequences, or if the search fails.
    """
    fields = {(problem.field or "").partition(".")[0] for problem in refusal.problems[:-1]}
    of_network = fields <= ModelDescriptor.model_fields.keys() - {"adapter"}
    phases = job.rl is not None or job.preference is not None or job.sequences is not None
    if job.target is not None or phases or not of_network:
        raise refusal
    model, job = prepared(model, cluster, job)
    try:
        return solved(model, cluster, job, top=top, progress=progress, writes=False)
    except SymconfigError:
        raise refusal from None


def other_backend(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, plan: Plan) -> Candidate | None:
    """Return the best candidate with the other of Megatron-LM and DeepSpeed, by a search of its own without pins. None
    if the task is not sft or lora, the plan has phases, the job names target, backend or release, or the search fails.
    """
    if plan.task not in ("lora", "sft") or plan.steps or NAMED & job.model_fields_set:
        return None
    other = "deepspeed" if plan.job.backend == "megatron" else "megatron"
    try:
        return best_plan(model, cluster, job.model_copy(update={"backend": other, "pins": {}}), top=1).best
    except SymconfigError:
        return None


def prepared(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> tuple[ModelDescriptor, Job]:
    """Return (model, job): the model with the job's images, adapter and head, as the chosen framework builds it; the
    job with its target. The target is set only if the default cannot express the model (`_with_target`). Raises
    InputError as `as_trained`.
    """
    model, job = as_trained(model, job)
    job = _with_target(model, cluster, job)
    model = built(model, target_of(model, job).assuming(job).backend)
    model = as_laid(model, job.target)
    compares = target_of(model, job).compares
    return model if compares is None else compares.scoring(model, job), job


def _of_values(model: ModelDescriptor, name: str | None) -> ModelDescriptor:
    """Return the model of a name, or without one the actor's `model`, with a score head and no adapter. Raises as
    `load_model`.
    """
    return (model if name is None else load_model(name)).of_values


def unsupported(
    model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, target: Target | None = None
) -> tuple[Problem, ...]:
    """Return the problems about inputs for which a target can express no plan, whatever the search chooses; () if it
    can. target: None: the job's. Problems with `edit` can be solved by hand in the framework's code. Raises InputError
    with those problems of an invalid job that are about inputs; if all are about other fields, () is returned.
    """
    target = target or target_of(model, job)
    job = target.assuming(job)
    model = built(model, job.backend)
    job = with_defaults(model, cluster, job)
    try:
        target.checked_variables(sketch(model, cluster, job, BACKENDS[job.backend].releases.of(job)))
    except InfeasibleError as error:
        return tuple(_of_inputs(error, job))
    except InputError as error:
        if given := tuple(_of_inputs(error, job)):
            raise InputError(given) from None
    return ()


def supported(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, *, writes: bool = False) -> Job:
    """Return the job with `edited` set to all fields that must be edited in the framework's code. Raises
    UnsupportedError, with the targets that can express the job, if a problem is neither editable nor in `job.edited`,
    and with `writes` also for editable ones not in it; InputError for names in `edited` that need no edit.
    """
    by_hand = unsupported(model, cluster, job.model_copy(update={"edited": ()}))
    names = tuple(problem.field or "" for problem in by_hand if problem.edit)
    if unknown := [name for name in job.edited if name not in names]:
        target = target_of(model, job).name
        what = f"is no field for which {target} must be edited"
        need = " or ".join(names) or f"none: {target} supports this model as it is"
        raise InputError([Problem(what, field="edited", got=name, need=need) for name in unknown])
    left = [problem for problem in by_hand if problem.field not in job.edited]
    if any(problem.edit is None for problem in left) or (left and writes):
        own = target_of(model, job).name
        able = tuple(_capable(model, cluster, job, own))
        raise UnsupportedError([*left, _alternatives(job, left, own, able)], able)
    return job.model_copy(update={"edited": names})


def _with_target(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> Job:
    """Return the job for the first target in _PREFERRED, else by name, that can express it. The job is unchanged if it
    names target, backend, release or `edited`, if it is invalid, if its default can express it, or if no target can.
    """
    if NAMED & job.model_fields_set or job.edited:
        return job
    try:
        problems = unsupported(model, cluster, job)
    except InputError:
        return job  # what is wrong with it is said of its own target
    if not problems:
        return job
    able = sorted(_capable(model, cluster, job, target_of(model, job).name))
    first = next((name for name in (*_PREFERRED, *able) if name in able), None)
    return job if first is None else _for_target(job, targets()[first])


def other_target(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, target: str | None) -> str | None:
    """Return a sentence why a job is planned for `target` and not for its default target: which fields of the model
    that one does not support. None if `target` is the default, or None, or the job names a target.
    """
    own = target_of(model, job).name
    if job.target is not None or target in (None, own):
        return None
    fields = dict.fromkeys(problem.field or "" for problem in unsupported(model, cluster, job))
    return f"{own} does not support this model's {', '.join(fields)}: planned for {target}, which does"


def manual_edits(plan: Plan) -> tuple[Problem, ...]:
    """Return the problems of a plan's target that need a manual edit in the framework's code and whose field is not in
    `job.edited`; () if none. Raises as `unsupported`.
    """
    job = plan.job.model_copy(update={"edited": ()})
    left = unsupported(plan.model, plan.cluster, job, target_of(plan.model, plan.job))
    return tuple(problem for problem in left if problem.edit and problem.field not in plan.job.edited)


def _of_inputs(error: SymconfigError, job: Job) -> Iterator[Problem]:
    """Yield an error's problems whose field is an input (model, lengths, task …) and that no pin can avoid: they name
    no pins that would, or each of these contradicts the job's pins or precision.
    """
    pins = dict(job.pins)
    if job.precision not in (None, "auto"):
        pins["precision"] = str(job.precision)
    for problem in error.problems:
        fields = (problem.field or "").split(" and ")
        given = any(field.partition(".")[0] in _INPUTS for field in fields)
        ways = (pin.partition("=") for pin in problem.pins)
        if given and all(name in pins and not agree(name, pins[name], value) for name, _, value in ways):
            yield problem


def _alternatives(job: Job, left: list[Problem], mine: str, able: Sequence[str]) -> Problem:
    """Return a problem of the target `mine` whose hint names the other targets that can express the job (`able`), those
    of its backend if it states one, and `--edited` if all of `left` can be edited by hand; without either it asks for a
    change.
    """
    if "backend" in job.model_fields_set:
        able = [name for name in able if targets()[name].assumes.get("backend", job.backend) == job.backend]
    ways = [f"--target {' or '.join(able)}"] if able else []
    if all(problem.edit for problem in left):
        names = ",".join(problem.field or "" for problem in left)
        ways.append(f"--edited {names} once that is changed by hand")
    among = f"any other target of {job.backend}" if "backend" in job.model_fields_set else "any other target"
    what = "no plan of this job can be written for it" + ("" if able else f", nor for {among}")
    return Problem(what, field="target", got=mine, hint=", or ".join(ways) or "a change of what is named above")


def _capable(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, but: str) -> Iterator[str]:
    """Yield the names of other targets than `but` that can express the job, of any backend, in the order of `targets`;
    a target for which the job is invalid is skipped.
    """
    for name, target in targets().items():
        with suppress(InputError):
            if name != but and not unsupported(model, cluster, _for_target(job, target), target):
                yield name


def _for_target(job: Job, target: Target) -> Job:
    return job.model_copy(update={**target.assumes, "target": target.name, "edited": ()})
