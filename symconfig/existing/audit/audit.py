"""An audit: what a configuration is, what it will do, what is wrong with it, and what would be better."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Limits
from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.existing.audit.configuration import Configuration, configuration_of
from symconfig.existing.audit.judge import MEMORY, PHASES, Judged, job_of, judge
from symconfig.existing.launch.reading import Hides, Reading, Unread
from symconfig.existing.launch.text import problem_at
from symconfig.existing.recover.run import Impossible, Run, Supplied
from symconfig.existing.rules import deepspeed, launcher, megatron, rl
from symconfig.existing.rules.rule import Finding, Rule
from symconfig.existing.rules.rule import findings as findings_of
from symconfig.plans.plan import Plan

if TYPE_CHECKING:
    from symconfig.existing.audit.steps import State


# Every rule of an audit, in the order of the page of rules.
RULES: tuple[Rule[Any], ...] = (*megatron.RULES, *deepspeed.RULES, *rl.RULES, *launcher.RULES, *MEMORY, *PHASES)
_ALIKE = 0.005  # of a step, that no plan is better by


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit.

    reader: the configuration of its framework. judged: the predicted run; None: `unpredicted` has the reasons. better:
    the best plan; None if none was asked for, nothing is predicted, or nothing fits (`infeasible`). way: the steps from
    the run to the plan, one change each. stated: a run whose step has phases, which `runs.rl.stated` judges with the
    whole step.
    """

    reader: Configuration
    findings: tuple[Finding, ...]
    judged: Judged | None = None
    unpredicted: tuple[Problem, ...] = ()
    better: Plan | None = None
    infeasible: str | None = None
    way: tuple[State, ...] = ()
    stated: Run | None = None

    @property
    def reading(self) -> Reading:
        return self.reader.reading

    @property
    def runs(self) -> bool:
        """Return whether no finding is an error."""
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def assumptions(self) -> tuple[Unread, ...]:
        """Return what the prediction assumes about places that were not read; () without a prediction."""
        return self.reading.assumptions if self.judged is not None else ()

    @property
    def gain(self) -> float | None:
        """Return the share of step time that the better plan saves; None without either, or if the run does not fit."""
        if self.judged is None or self.better is None or not self.judged.fits:
            return None
        return 1 - step_s(self.better) / step_s(self.judged.plan)

    @property
    def already_best(self) -> bool:
        """Return whether the better plan changes nothing and saves at most 0.5 % of the step, or an unknown share."""
        return not self.way and (self.gain is None or self.gain <= _ALIKE)


def step_s(plan: Plan) -> float:
    """Return the seconds of a plan's best step with all of its phases."""
    return plan.steps[0].step_s if plan.steps else plan.best.predicted.step_s


def audit(
    given: Reading | Configuration,
    supplied: Supplied,
    cluster: ClusterDescriptor | None,
    limits: Limits,
    *,
    plan: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Return the findings, the prediction and, if `plan`, the best plan for the same job.

    Without a cluster, with unread options or an unknown number of GPUs there are findings and `unpredicted` only, as
    also if the run is invalid. A run whose step has phases is returned unjudged, in `stated`. progress: is called with
    what is done next. Raises InputError for an unknown version of the framework.
    """
    reader = given if isinstance(given, Configuration) else configuration_of(given, supplied)
    reading = reader.reading
    per_node = cluster.gpus_per_node if cluster is not None else None
    findings = (*launcher.broken(reading, supplied.gpus, per_node), *reader.findings(cluster))
    unpredicted = _prediction_blockers(reader, cluster)
    if unpredicted or cluster is None:
        return Audit(reader, findings, unpredicted=tuple(unpredicted))
    progress("predicting what is there")
    try:
        run = reader.run(cluster)
    except InputError as error:
        return unpredicted_for(Audit(reader, findings), error.problems)
    if run.around is not None:
        return Audit(reader, findings, stated=run)
    done = Audit(reader, findings)
    try:
        judged = judge(run, cluster, limits)
        memory = findings_of(MEMORY, judged, reading.start)
        done = replace(done, judged=judged, findings=(*findings, *memory))
    except InputError as error:
        done = unpredicted_for(done, error.problems)
    return planned(done, run, cluster, limits, progress) if plan else done


def unpredicted_for(done: Audit, problems: Sequence[Problem]) -> Audit:
    """Return the audit with these problems, each with a hint, as the reasons why nothing is predicted.

    `Impossible` problems are also added as errors, unless a finding of the same rule is one already.
    """
    known = {finding.rule for finding in done.findings if finding.severity == "error"}
    impossible = (
        Finding(problem.rule, "error", problem if problem.file else replace(problem, file=done.reading.file))
        for problem in problems
        if isinstance(problem, Impossible) and problem.rule not in known
    )
    reasons = tuple(with_hint(problem) for problem in problems)
    return replace(done, unpredicted=reasons, findings=(*done.findings, *impossible))


def planned(
    done: Audit, run: Run, cluster: ClusterDescriptor, limits: Limits, progress: Callable[[str], None]
) -> Audit:
    """Return the audit with the best plan and the steps to it; with the reason in `infeasible` if there is no plan.

    Without a prediction of the run (`judged`) there is a plan, but no steps.
    """
    # The search takes as long to import as the rest to do.
    from symconfig.existing.audit.steps import best, steps

    progress("looking for a better plan")
    try:
        better = best(run, cluster, job_of(run, cluster, limits))
    except (InfeasibleError, InputError) as error:
        return replace(done, infeasible=str(error))
    return replace(done, better=better, way=() if done.judged is None else steps(done.judged, better))


def _prediction_blockers(reader: Configuration, cluster: ClusterDescriptor | None) -> list[Problem]:
    """Return why nothing can be predicted: hidden options, no cluster, or an unknown number of GPUs."""
    result = list(unread_problems(reader.reading))
    if cluster is None:
        result.append(Problem("is needed to predict memory and time", field="--cluster", hint="--cluster h100"))
    if reader.gpus is None:
        word = next(iter(reader.reading.world.dark), None)
        what = "is not given by the launcher" if word is None else f"its value {word.unknown}"
        place = None if word is None else word.place
        result.append(with_hint(problem_at(place, what, field="the number of GPUs", hint="--gpus N")))
    return result


_UNSET = re.compile(r"depends on \$(\w+), which is not set in the script")
_ARGUMENT = re.compile(r"depends on the script's argument \$(\d+)")
_FILE = re.compile(r"names a file|is a script that is not there|is a configuration of Accelerate")


def with_hint(problem: Problem) -> Problem:
    """Return the problem with the option that supplies its value before its hint; unchanged without one."""
    ways = [way for way in (_supplied(problem.what, "VALUE"), problem.hint) if way]
    return replace(problem, hint=", or ".join(ways)) if ways else problem


def unread_problems(reading: Reading) -> Iterator[Problem]:
    """Yield a problem for each unread place that may hide options, with a hint on how to supply them if
    there is a way.
    """
    for item in reading.unread:
        if item.hides is Hides.OPTIONS:
            many = f"may be any number of options: it {item.why}"
            what = many if item.options else f"{item.why}: it may hide options"
            hint = _supplied(item.why, "'OPTIONS'")
            if _FILE.search(item.why) and item.what.startswith("-"):
                hint = "the file where the script names it" if "not there" in item.why else None
            elif hint is None and item.options:
                hint = "the options themselves in its place, in a copy of the script"
            yield item.place.problem(what, field=item.what, hint=hint)


def _supplied(why: str, value: str) -> str | None:
    """Return a hint on how to supply the variable or script argument that `why` depends on; None for other reasons."""
    if unset := _UNSET.search(why):
        return f"--set {unset[1]}={value}"
    return "the script's own arguments after a lone --" if _ARGUMENT.search(why) else None
