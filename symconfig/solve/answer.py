"""A job solved to an answer: the best plan of those that its target can be told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any, Protocol

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, Problem, SymconfigError
from symconfig.plans.plan import Plan
from symconfig.solve.pins import narrowed

TOP = 5  # candidates that are ranked where nobody says how many
MOST = 100  # searches for one answer
Pins = Mapping[str, str]


class Target(Protocol):
    """A format as the search sees it.

    assumes: fields of a job that it takes for granted. variables: raises InfeasibleError for a plan that it cannot be
    told, with the pins that avoid it.
    """

    @property
    def name(self) -> str: ...
    @property
    def assumes(self) -> Mapping[str, str]: ...
    @property
    def variables(self) -> Callable[[Plan], Any]: ...


def answer(
    model: ModelDescriptor,
    cluster: ClusterDescriptor,
    job: Job,
    target: Target,
    *,
    top: int,
    progress: Callable[[str, float], None] | None = None,
) -> Plan:
    """Return the plan for this job. Where the job names no target, it is the framework's own; what a target assumes of
    the framework and its release is so unless the job says otherwise.

    Raises InputError for what can never run, InfeasibleError when nothing fits or the target cannot express it.
    """
    from symconfig.solve.search import search

    job = assuming(job, target)

    def solved(pins: Pins) -> Plan:
        pinned = job.model_copy(update={"pins": dict(pins)})
        plan = search(model, cluster, pinned, top=top, progress=progress)
        return replace(plan, job=plan.job.model_copy(update={"pins": job.pins}))

    return _Telling(target, job, solved).best()


def assuming(job: Job, target: Target) -> Job:
    """Return the job with what a target takes for granted where the job says nothing else."""
    assumed = {name: value for name, value in target.assumes.items() if name not in job.model_fields_set}
    return job.model_copy(update=assumed)


def refused(target: Target, plan: Plan) -> tuple[Problem, ...]:
    """Return why the target cannot be told this plan."""
    try:
        target.variables(plan)
    except InfeasibleError as error:
        return error.problems
    return ()


@dataclass(frozen=True, slots=True)
class _Telling:
    """Best first over pins: a plan that the target refuses gives way to those with one of the pins that each of its
    refusals names. Every plan that can be told has one of them, and none is better than the best of its pins: the first
    that is not refused is the best of all that can be told.
    """

    target: Target
    job: Job
    solved: Callable[[Pins], Plan]

    def best(self) -> Plan:
        """Return the best plan that can be told. Raises InfeasibleError with every reason where nothing can be told."""
        first = self.solved(self.job.pins)
        waiting: list[tuple[tuple[float, float], int, Pins, Plan]] = [(_rank(first), 0, self.job.pins, first)]
        seen, reasons, dead = [dict(self.job.pins)], list[Problem](), list[Problem]()
        while waiting:
            _, _, pins, plan = heappop(waiting)
            problems = refused(self.target, plan)
            if not problems:
                return self._tellable(plan, pins, first)
            if final := [problem for problem in problems if not problem.pins]:
                raise InfeasibleError(final)
            reasons += problems
            for more in self._narrower(problems, pins):
                if more in seen:
                    continue
                if len(seen) == MOST:
                    raise self._nothing(f"nothing that it can be told was found in {MOST} searches", reasons)
                seen.append(more)
                try:
                    other = self.solved(more)
                except SymconfigError as error:
                    dead += error.problems
                else:
                    heappush(waiting, (_rank(other), len(seen), more, other))
        raise self._nothing("nothing that it can be told fits" + (f": {dead[0].what}" if dead else ""), reasons)

    def _narrower(self, problems: Sequence[Problem], pins: Pins) -> Iterator[dict[str, str]]:
        """Yield all pins that there is no choice of at once, else those of the refusal with the fewest."""
        certain = [problem.pins[0] for problem in problems if len(problem.pins) == 1]
        ways = [certain] if certain else [[pin] for pin in min((problem.pins for problem in problems), key=len)]
        # What the job asks for is not pinned to something else.
        fixed = {"precision": self.job.precision} if self.job.precision not in (None, "auto") else {}
        for way in ways:
            more = narrowed(pins, *way)
            if more is not None and all(more.get(name, value) == value for name, value in fixed.items()):
                yield more

    def _tellable(self, plan: Plan, pins: Pins, first: Plan) -> Plan:
        """Return the plan with what was imposed, and only runners-up that can be told."""
        if self.job.target is not None:  # its framework's own target can be told all that it plans
            others = (other for other in plan.alternatives if not refused(self.target, replace(plan, best=other)))
            plan = replace(plan, alternatives=tuple(others))
        imposed = {name: value for name, value in pins.items() if self.job.pins.get(name) != value}
        if not imposed:
            return plan
        search = replace(plan.search, narrowed=imposed, free_step_s=first.best.predicted.step_s)
        return replace(plan, search=search)

    def _nothing(self, what: str, reasons: Sequence[Problem]) -> InfeasibleError:
        """Return an error with all that the target cannot be told."""
        head = Problem(what, field="target", got=self.target.name, hint="another target, fewer pins, or more GPUs")
        problems = dict.fromkeys(replace(problem, pins=(), hint=None) for problem in reasons)
        return InfeasibleError([head, *problems])


def _rank(plan: Plan) -> tuple[float, float]:
    """Rank plans by the fewest GPUs, where their number is asked for, and the fastest step."""
    return plan.best.parallel.world_size, plan.best.predicted.step_s
