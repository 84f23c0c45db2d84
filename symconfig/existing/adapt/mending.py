"""An adapted configuration audited as its framework would read it, and mended until nothing is left that a change of
an option can mend."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from symconfig.existing.adapt.draft import Draft, Progress
from symconfig.existing.adapt.goal import TOUCHED, Goal, Wish, having
from symconfig.existing.adapt.launcher import unset
from symconfig.existing.adapt.outcome import Flaw
from symconfig.existing.adapt.ways import change, granted
from symconfig.existing.audit.audit import audited
from symconfig.existing.audit.configuration import MegatronConfiguration, configuration_of
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Supplied
from symconfig.existing.rules.rule import Finding
from symconfig.frameworks.backend import Medium
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Plan
from symconfig.render import megatron

Findings = dict[tuple[str, str | None], Finding]  # by rule and field: lines move under an edit


def inspect(reading: Reading, plan: Plan, gpus: int | None = None) -> tuple[Findings, Findings]:
    """Return the errors and the warnings of an audit, each by its rule and field; of several alike the first.

    Notes are left out. The audit has the plan's model, cluster, Megatron-LM release and memory limits. The release does
    not count as given by the user, so a fork's options are judged as in an audit without it. gpus: None: the plan's.
    """
    options = BACKENDS[plan.best.target.backend].told_by is Medium.OPTIONS
    stated = Supplied(
        model=plan.model,
        gpus=gpus or plan.best.parallel.world_size,
        seq_length=plan.best.batch.seq_length,
        vocab_size=plan.model.vocab_size,
        megatron_version=megatron.version(plan) if options else None,
    )
    configuration = configuration_of(reading, stated)
    if isinstance(configuration, MegatronConfiguration):
        configuration.version_given = False
    done = audited(configuration, stated, plan.cluster, plan.job.limits, plan=False)
    by_severity: dict[str, Findings] = {"error": {}, "warning": {}, "note": {}}
    for finding in done.findings:
        by_severity[finding.severity].setdefault((finding.rule, finding.problem.field), finding)
    return by_severity["error"], by_severity["warning"]


# Ways to mend a finding, the most natural first; which of them are right the next audit says.
Repairs = Callable[[Progress, Finding], Iterator[Progress]]
_MOST = 20  # findings that are looked at: only a defect comes here


def mended(
    progress: Progress, plan: Plan, original: Reading, repairs: Repairs, sound: Callable[[Draft], bool]
) -> tuple[Progress, tuple[Flaw, ...]]:
    """Return the progress with each error and each new warning repaired where one change can, and the errors left.

    New warnings are those that the original had not. A repair is kept if its finding is gone, no other one is new, and
    `sound` accepts the draft (it must be as close to the plan as before). New warnings that stay become notes.
    repairs: yields alternative progresses for a finding. At most 20 findings are tried.
    """
    old_errors, old_warnings = inspect(original, plan, original.world.gpus)

    def inspected(reading: Reading) -> tuple[Findings, Findings, Findings]:
        errors, warnings = inspect(reading, plan)
        return errors, warnings, {key: each for key, each in warnings.items() if key not in old_warnings}

    errors, _, new = inspected(progress.draft.reading)
    seen = set()
    for _ in range(_MOST):
        key = next((each for each in {**errors, **new} if each not in seen), None)
        if key is None:
            break
        seen.add(key)
        for after in repairs(progress, {**errors, **new}[key]):
            then, warned, more = inspected(after.draft.reading)
            worse = then.keys() - errors.keys() or more.keys() - new.keys()
            if key not in {**then, **warned} and not worse and sound(after.draft):
                progress, errors, new = after, then, more
                break
    for finding in new.values():
        progress = progress.noted(f"warning: {finding.problem} [{finding.rule}] The plan's values bring it.")
    flaws = (Flaw(finding.rule, finding.problem, key in old_errors) for key, finding in errors.items())
    return progress, tuple(flaws)


def because(finding: Finding) -> str:
    """Return the reason for a repair as a clause to follow "since": the finding's sentence and its rule's name."""
    sentence = ": ".join(filter(None, (finding.problem.field, finding.problem.what)))
    return f'an audit finds "{sentence}" [{finding.rule}]'


_OPTION = re.compile(r"--[A-Za-z][\w-]*")


def repairs(progress: Progress, goal: Goal, finding: Finding) -> Iterator[Progress]:
    """Yield alternative progresses, each with one option changed that the finding is about or names.

    The option gets the plan's value, or is removed where the plan has none, or gets a value that the finding's `need`
    names. Only options in `TOUCHED` are changed. If the finding is about an environment variable, yield the progress
    without its export instead.
    """
    why = because(finding)
    variable = finding.problem.field or ""
    if variable in progress.draft.reading.environment:
        yield from unset(progress, variable, why)
        return
    names = goal.names(progress.draft.reading)
    for dest in _dests(finding, names):
        setting = having(names, dest)
        for wish in dict.fromkeys(_wishes(dest, setting, finding, goal)):
            after = granted(progress.draft, names, wish)
            if after is not None:
                yield progress.went(after, change(wish, setting, names, goal.names(after.reading), why))


def _dests(finding: Finding, names: Namespace) -> tuple[str, ...]:
    """Return the destinations, without repeats and only those in `TOUCHED`, of the options that a finding is about.

    These are its field, the options at its place, and every `--option` in its texts.
    """
    problem, flags = finding.problem, names.table.flags
    sentence = " ".join(filter(None, (problem.what, problem.need, problem.hint)))
    there = [
        setting.name
        for setting in names.settings
        if setting.spelled == problem.field
        or (setting.place.file, setting.place.line, setting.place.column)
        == (problem.file, problem.line, problem.column)
    ]
    options = (problem.field or "", *there, *_OPTION.findall(sentence))
    dests = (flags[name].dest for name in options if name in flags)
    return tuple(dest for dest in dict.fromkeys(dests) if dest in TOUCHED)


def _wishes(dest: str, setting: Setting | None, finding: Finding, goal: Goal) -> Iterator[Wish]:
    """Yield the values to try for one destination: the plan's or none, then those that the finding's `need` names.

    setting: the option as it is; None: it is not given. A number or choice in `need` is tried, and a switch that it
    names.
    """
    planned, flags = goal.wanted.setting(dest), goal.table.flags
    if planned is not None:
        yield Wish(dest, planned.name, planned.texts)
    elif setting is not None:
        yield Wish(dest, setting.name, None)
    problem = finding.problem
    for name, flag in flags.items():
        if flag.dest != dest or (setting is not None and name != setting.name):
            continue
        if flag.kind != "store":
            if setting is None and (problem.need == "it" or name in (problem.need or "")):
                yield Wish(dest, name, ())
            continue
        for word in re.split(r",? or |, ", problem.need or ""):
            if word in flag.choices or (flag.type == "int" and word.isdecimal()):
                yield Wish(dest, name, (word,))
