"""An audit: what a configuration is, what it will do, what is wrong with it, and what would be better."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Limits
from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.existing.audit.configuration import Configuration, configuration_of
from symconfig.existing.audit.judge import Judged, job_of, judge
from symconfig.existing.audit.predicted import MEMORY
from symconfig.existing.launch.reading import Hides, Reading, Unread
from symconfig.existing.recover.run import Impossible, Run, Supplied
from symconfig.existing.rules import launcher
from symconfig.existing.rules.launcher import LauncherFacts
from symconfig.existing.rules.rule import Finding
from symconfig.existing.rules.rule import findings as findings_of
from symconfig.plans.plan import Plan

if TYPE_CHECKING:
    from symconfig.existing.audit.steps import State


_ALIKE = 0.005  # of a step, that no plan is better by


@dataclass(frozen=True, slots=True)
class Audit:
    """reader: the configuration as its framework reads it. judged: what it costs; None: `unpredicted` says why.

    better: the best plan; None where none was asked for, where nothing is predicted, or where `infeasible` says that
    nothing fits. way: from the run to it, one change after the other. stated: a run whose step has phases, which
    `runs.rl.stated` judges with the step around it.
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
        """Tell whether nothing is known that keeps it from running."""
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def assumptions(self) -> tuple[Unread, ...]:
        """Return what a prediction takes for granted of places that were not read."""
        return self.reading.assumptions if self.judged is not None else ()

    @property
    def gain(self) -> float | None:
        """Share of the step time that the best plan saves; None where there is none, or the run itself does not fit."""
        if self.judged is None or self.better is None or not self.judged.fits:
            return None
        return 1 - step_s(self.better) / step_s(self.judged.plan)

    @property
    def already_best(self) -> bool:
        """Tell whether nothing that the planner decides would change."""
        return not self.way and (self.gain is None or self.gain <= _ALIKE)


def step_s(plan: Plan) -> float:
    """Return the seconds of a plan's best step with all of its phases."""
    return plan.steps[0].step_s if plan.steps else plan.best.predicted.step_s


def audit(
    reading: Reading,
    supplied: Supplied,
    cluster: ClusterDescriptor | None,
    limits: Limits,
    *,
    plan: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Audit a reading. plan: look for a better one, too. Raises InputError for a framework's version that is
    not known.
    """
    return audited(configuration_of(reading, supplied), supplied, cluster, limits, plan=plan, progress=progress)


def audited(
    reader: Configuration,
    supplied: Supplied,
    cluster: ClusterDescriptor | None,
    limits: Limits,
    *,
    plan: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Audit a configuration that its framework has read. plan: as of `audit`."""
    reading = reader.reading
    findings, unpredicted = (*_launcher(reading, supplied, cluster), *reader.findings(cluster)), _dark(reader, cluster)
    if unpredicted or cluster is None:
        return Audit(reader, findings, unpredicted=tuple(unpredicted))
    progress("predicting what is there")
    try:
        run = reader.run(cluster)
    except InputError as error:
        return unpredicted_for(Audit(reader, findings), error.problems)
    if run.around is not None:
        return Audit(reader, findings, stated=run)
    done = _judged(Audit(reader, findings), run, cluster, limits)
    return planned(done, run, cluster, limits, progress) if plan else done


def unpredicted_for(done: Audit, problems: Sequence[Problem]) -> Audit:
    """Return the audit with why nothing is predicted, and what would help. Numbers that no run has are errors of the
    configuration.
    """
    known = {finding.rule for finding in done.findings if finding.severity == "error"}
    impossible = (
        Finding(problem.rule, "error", problem if problem.file else replace(problem, file=done.reading.file))
        for problem in problems
        if isinstance(problem, Impossible) and problem.rule not in known
    )
    reasons = tuple(helped(problem) for problem in problems)
    return replace(done, unpredicted=reasons, findings=(*done.findings, *impossible))


def _judged(done: Audit, run: Run, cluster: ClusterDescriptor, limits: Limits) -> Audit:
    """Return the audit with what the run costs; or why there is no such thing."""
    try:
        judged = judge(run, cluster, limits)
    except InputError as error:
        return unpredicted_for(done, error.problems)
    return replace(done, judged=judged, findings=(*done.findings, *findings_of(MEMORY, judged, done.reading.start)))


def planned(
    done: Audit, run: Run, cluster: ClusterDescriptor, limits: Limits, progress: Callable[[str], None]
) -> Audit:
    """Return the audit with the best plan, also of a run that cannot be; and with the way to it."""
    from symconfig.existing.audit.steps import (  # the search takes as long to import as the rest to do
        best,
        steps,
        willing,
    )

    progress("looking for a better plan")
    try:
        better = best(run, cluster, job_of(run, cluster, limits))
    except (InfeasibleError, InputError) as error:
        return replace(done, infeasible=str(error))
    if done.judged is None:
        return replace(done, better=better)
    framework = willing(run.configuration.framework, cluster.gpu.architecture)
    return replace(done, better=better, way=steps(done.judged, better, framework))


def _launcher(reading: Reading, supplied: Supplied, cluster: ClusterDescriptor | None) -> list[Finding]:
    config = reading.deepspeed.text if reading.deepspeed is not None else None
    scripts = tuple(text for text in reading.texts if text != config) if reading.format == "bash" else ()
    facts = LauncherFacts(reading.world, supplied.gpus, cluster.gpus_per_node if cluster is not None else None, scripts)
    place = next((word.place for word in reading.world.words), None)
    return findings_of(launcher.RULES, facts, place or (reading.program.place if reading.program is not None else None))


def _dark(reader: Configuration, cluster: ClusterDescriptor | None) -> list[Problem]:
    """Return why no prediction is made, whatever the options say."""
    result = list(of_unread(reader.reading))
    if cluster is None:
        result.append(Problem("is needed to predict memory and time", field="--cluster", hint="--cluster h100"))
    if reader.gpus is None:
        result.append(helped(_uncounted(reader.reading)))
    return result


def _uncounted(reading: Reading) -> Problem:
    """Say why the number of GPUs is not known."""
    field, hint = "the number of GPUs", "--gpus N"
    if not reading.world.dark:
        return Problem("is not said by the launcher", field=field, hint=hint)
    word = reading.world.dark[0]
    return word.place.problem(f"its value {word.unknown}", field=field, hint=hint)


_UNSET = re.compile(r"depends on \$(\w+), which is not set in the script")
_ARGUMENT = re.compile(r"depends on the script's argument \$(\d+)")
_FILE = re.compile(r"names a file|is a script that is not there|is a configuration of Accelerate")


def helped(problem: Problem) -> Problem:
    """Return the problem with what gives the value that it asks for."""
    ways = [way for way in (_remedy(problem), problem.hint) if way]
    return replace(problem, hint=", or ".join(ways)) if ways else problem


def of_unread(reading: Reading) -> Iterator[Problem]:
    """Yield a problem for each place that may hide any option, with what would say which."""
    for item in reading.unread:
        if item.hides is Hides.OPTIONS:
            many = f"may be any number of options: it {item.why}"
            what = many if item.options else f"{item.why}: it may hide options"
            yield item.place.problem(what, field=item.what, hint=_for_options(item))


def _for_options(item: Unread) -> str | None:
    """Say what gives the options that a place hides."""
    if _FILE.search(item.why) and item.what.startswith("-"):
        return "the file where the script names it" if "not there" in item.why else None
    if unset := _UNSET.search(item.why):
        return f"--set {unset[1]}='OPTIONS', or --set {unset[1]}= if it brings none"
    if _ARGUMENT.search(item.why):
        return "the script's own arguments after a lone --"
    return "the options themselves in its place, in a copy of the script" if item.options else None


def _remedy(problem: Problem) -> str | None:
    """Say what gives a value that is not known for this reason; None where nothing but another script does."""
    if unset := _UNSET.search(problem.what):
        return f"--set {unset[1]}=VALUE"
    if _ARGUMENT.search(problem.what):
        return "the script's own arguments after a lone --"
    return None
