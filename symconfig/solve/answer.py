"""The plan of a job: the best of those that its target can express."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Protocol

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, Problem, SymconfigError
from symconfig.plans.plan import Plan
from symconfig.solve.pins import narrowed

TOP = 5  # default number of plans to return
MOST_SEARCHES = 100  # searches at most for one answer
Pins = Mapping[str, str]


class Target(Protocol):
    """A format that plans are written in, as the search uses it.

    assumes: values of job fields that the job does not set. checked_variables: raises InfeasibleError for a plan that
    the format cannot express, with pins that avoid it.
    """

    @property
    def name(self) -> str: ...
    @property
    def assumes(self) -> Mapping[str, str]: ...

    def checked_variables(self, plan: Plan) -> Any: ...


def answer(
    model: ModelDescriptor,
    cluster: ClusterDescriptor,
    job: Job,
    target: Target,
    *,
    top: int,
    progress: Callable[[str, float], None] | None = None,
) -> Plan:
    """Return the best plan for a job that its target can express, by `best_expressible` over calls of `search`.

    Job fields that are not set take the values of `target.assumes`. The plan's job has the given job's pins, not those
    that were added for the target. progress: called with a message and the fraction done. Raises InputError for a job
    that can never run, and InfeasibleError if nothing fits or the target cannot express any plan.
    """
    from symconfig.solve.search import search

    job = assuming(job, target)

    def solved(pins: Pins) -> Plan:
        pinned = job.model_copy(update={"pins": dict(pins)})
        plan = search(model, cluster, pinned, top=top, progress=progress)
        return replace(plan, job=plan.job.model_copy(update={"pins": job.pins}))

    return best_expressible(target, job, solved)


def assuming(job: Job, target: Target) -> Job:
    """Return a copy of the job whose unset fields have the values that the target assumes; fields set are unchanged."""
    assumed = {name: value for name, value in target.assumes.items() if name not in job.model_fields_set}
    return job.model_copy(update=assumed)


def refusals(target: Target, plan: Plan) -> tuple[Problem, ...]:
    """Return the problems for which a target cannot express a plan; empty if it can.

    They are those of the InfeasibleError that `target.checked_variables` raises; other errors pass through.
    """
    try:
        target.checked_variables(plan)
    except InfeasibleError as error:
        return error.problems
    return ()


def best_expressible(target: Target, job: Job, solved: Callable[[Pins], Plan]) -> Plan:
    """Return the first plan that a target can express in a best-first search over pins: fewest GPUs, then fastest step.

    solved: returns the best plan for given pins. If the target refuses a plan, all pins that a refusal suggests without
    alternative are added at once; else each pin of the refusal with the fewest alternatives opens a search. Pins that
    conflict with earlier ones or with the job's precision, or were tried, are skipped. If the result has pins that the
    job lacks, `plan.search` gets them as `narrowed`, and the step of the first plan as `free_step_s`. If the job has a
    target, alternatives that it refuses are dropped.

    Raises InfeasibleError with all refusals if no plan is left or after MOST_SEARCHES searches, and with those that
    suggest no pin as soon as there is one. Errors of the first `solved` pass through; after a SymconfigError of a later
    one the others go on.
    """

    def nothing(what: str) -> InfeasibleError:
        head = Problem(what, field="target", got=target.name, hint="another target, fewer pins, or more GPUs")
        return InfeasibleError([head, *dict.fromkeys(replace(one, pins=(), hint=None) for one in reasons)])

    first = solved(job.pins)
    waiting: list[tuple[tuple[float, float], int, Pins, Plan]] = [(_rank(first), 0, job.pins, first)]
    seen, reasons, infeasible = [dict(job.pins)], list[Problem](), list[Problem]()
    # A precision that the job asks for is not pinned to another.
    fixed = {"precision": job.precision} if job.precision not in (None, "auto") else {}
    while waiting:
        _, _, pins, plan = heappop(waiting)
        problems = refusals(target, plan)
        if not problems:
            if job.target is not None:  # its framework's own target can express all that it plans
                able = (each for each in plan.alternatives if not refusals(target, replace(plan, best=each)))
                plan = replace(plan, alternatives=tuple(able))
            imposed = {name: value for name, value in pins.items() if job.pins.get(name) != value}
            if not imposed:
                return plan
            search = replace(plan.search, narrowed=imposed, free_step_s=first.best.predicted.step_s)
            return replace(plan, search=search)
        if final := [problem for problem in problems if not problem.pins]:
            raise InfeasibleError(final)
        reasons += problems
        # All pins without an alternative at once, else the alternatives of the refusal that has the fewest.
        certain = [problem.pins[0] for problem in problems if len(problem.pins) == 1]
        ways = [certain] if certain else [[pin] for pin in min((problem.pins for problem in problems), key=len)]
        for way in ways:
            more = narrowed(pins, *way)
            if more is None or more in seen or any(more.get(name, value) != value for name, value in fixed.items()):
                continue
            if len(seen) == MOST_SEARCHES:
                raise nothing(f"no plan that it can express was found in {MOST_SEARCHES} searches")
            seen.append(more)
            try:
                other = solved(more)
            except SymconfigError as error:
                infeasible += error.problems
            else:
                heappush(waiting, (_rank(other), len(seen), more, other))
    raise nothing("no plan that it can express fits" + (f": {infeasible[0].what}" if infeasible else ""))


def _rank(plan: Plan) -> tuple[float, float]:
    """Return the sort key of a plan: (number of GPUs, step time in seconds), least first."""
    return plan.best.configuration.world_size, plan.best.predicted.step_s
