"""What a target can never be told of a job, asked before it is searched: refusals that no choice of the planner's
avoids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, InputError, Problem, SymconfigError
from symconfig.frameworks.known import BACKENDS, built
from symconfig.plans.plan import Plan
from symconfig.plans.sketch import sketch
from symconfig.render import target_of, targets
from symconfig.render.target import Target
from symconfig.solve.answer import assuming
from symconfig.solve.pins import narrowed
from symconfig.solve.whole import filled

# Fields of a job that the planner never decides. A model's own fields are such, too.
_GIVEN = (
    frozenset({"model", "training", "seq_length", "task", "packing", "precision", "optimizer"})
    | {"sequences", "preference", "rl"}
    | ModelDescriptor.model_fields.keys()
)

# Fields of a job that name whose files it wants.
NAMED = frozenset({"target", "backend", "megatron_version"})
# Targets in the order in which they are taken where a job names none; all others follow by name.
_NEXT = ("bridge", "deepspeed", "slime")


class UntoldError(InfeasibleError):
    """A target can be told no plan of a job; `able` can."""

    def __init__(self, problems: Sequence[Problem], able: Sequence[str] = ()) -> None:
        super().__init__(problems)
        self.able = tuple(able)


def unsayable(
    model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, target: Target | None = None
) -> tuple[Problem, ...]:
    """Return why a target (None: the job's) can be told no plan of a job.

    What a person can change in the framework's code has an `edit`. Raises InputError where the job itself is wrong.
    """
    target = target or target_of(model, job)
    job = assuming(job, target)
    model = built(model, job.backend)
    job = filled(model, cluster, job)
    try:
        target.variables(sketch(model, cluster, job, BACKENDS[job.backend].releases.of(job)))
    except InfeasibleError as error:
        return tuple(_given(error, job))
    except InputError as error:
        if given := tuple(_given(error, job)):
            raise InputError(given) from None
    return ()


def check(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, *, writes: bool = False) -> Job:
    """Return the job with what must be changed by hand in the framework taken as changed, unless it writes files.

    Raises InfeasibleError with what the job's target can never be told and the targets that can, InputError for a job
    that is wrong.
    """
    by_hand = unsayable(model, cluster, job.model_copy(update={"edited": ()}))
    names = tuple(problem.field or "" for problem in by_hand if problem.edit)
    if unknown := [name for name in job.edited if name not in names]:
        target = target_of(model, job).name
        what = f"is no field that {target} has to be changed for"
        need = " or ".join(names) or f"nothing: {target} can be told this model as it is"
        raise InputError([Problem(what, field="edited", got=name, need=need) for name in unknown])
    left = [problem for problem in by_hand if problem.field not in job.edited]
    if any(problem.edit is None for problem in left) or (left and writes):
        anywhere = tuple(_able(model, cluster, job, target_of(model, job).name, every=True))
        raise UntoldError([*left, _elsewhere(model, cluster, job, left)], anywhere)
    return job.model_copy(update={"edited": names})


def opened(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> Job:
    """Return the job for the next target that can be told it, where it names none and its framework's own cannot as
    the framework comes."""
    if NAMED & job.model_fields_set or job.edited:
        return job
    try:
        problems = unsayable(model, cluster, job)
    except InputError:
        return job  # what is wrong with it is said of its own target
    if not problems:
        return job
    able = sorted(_able(model, cluster, job, target_of(model, job).name), key=_place)
    return _trial(job, targets()[able[0]]) if able else job


def instead(job: Job, plan: Plan) -> str | None:
    """Return why a plan is for another target than its job's framework's own, in a sentence; None: it is not."""
    return _moved(plan.model, plan.cluster, job, plan.job.target)


@contextmanager
def naming(model: ModelDescriptor, cluster: ClusterDescriptor, wanted: Job, job: Job) -> Iterator[None]:
    """Add to a refusal of a job that it is for another target than that of the job that was wanted, and why."""
    try:
        yield
    except InfeasibleError as error:
        if (why := _moved(model, cluster, wanted, job.target)) is None:
            raise
        raise InfeasibleError([*error.problems, Problem(why, field="target")]) from None


def _moved(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, target: str | None) -> str | None:
    """Return why a job is planned for another target than its framework's own, in a sentence; None: it is not."""
    own = target_of(model, job).name
    if job.target is not None or target in (None, own):
        return None
    fields = dict.fromkeys(problem.field or "" for problem in unsayable(model, cluster, job))
    return f"{own} cannot be told this model's {', '.join(fields)}: planned for {target}, which can"


def by_hand(plan: Plan) -> tuple[Problem, ...]:
    """Return what of a plan's model its files cannot say until the framework is changed by hand."""
    job = plan.job.model_copy(update={"edited": ()})
    left = unsayable(plan.model, plan.cluster, job, target_of(plan.model, plan.job))
    return tuple(problem for problem in left if problem.edit and problem.field not in plan.job.edited)


def _given(error: SymconfigError, job: Job) -> Iterator[Problem]:
    """Yield the problems that are about what the planner is given, and that no pin left open avoids."""
    pins = dict(job.pins)
    if job.precision not in (None, "auto"):
        pins["precision"] = str(job.precision)
    for problem in error.problems:
        fields = (problem.field or "").split(" and ")
        given = any(field.partition(".")[0] in _GIVEN for field in fields)
        if given and all(narrowed(pins, pin) is None for pin in problem.pins):
            yield problem


def _elsewhere(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, left: list[Problem]) -> Problem:
    """Return what else a person can do: other targets, or the changes by hand if nothing else is in the way."""
    mine = target_of(model, job).name
    able = tuple(_able(model, cluster, job, mine))
    ways = [f"--target {' or '.join(able)}"] if able else []
    if all(problem.edit for problem in left):
        names = ",".join(problem.field or "" for problem in left)
        ways.append(f"--edited {names} once that is changed by hand")
    among = f"any other target of {job.backend}" if "backend" in job.model_fields_set else "any other target"
    what = "no plan of this job can be written for it" + ("" if able else f", nor for {among}")
    return Problem(what, field="target", got=mine, hint=", or ".join(ways) or "a change of what is named above")


def _able(
    model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, but: str, *, every: bool = False
) -> Iterator[str]:
    """Yield the other targets that can be told all that the planner is given.

    Of another framework only where the job leaves the framework open; every: of any.
    """
    for name, target in targets().items():
        backend = target.assumes.get("backend", job.backend)
        if name == but or (not every and "backend" in job.model_fields_set and backend != job.backend):
            continue
        try:
            if not unsayable(model, cluster, _trial(job, target), target):
                yield name
        except InputError:
            continue


def _trial(job: Job, target: Target) -> Job:
    return job.model_copy(update={**target.assumes, "target": target.name, "edited": ()})


def _place(name: str) -> tuple[int, str]:
    return (_NEXT.index(name) if name in _NEXT else len(_NEXT), name)
