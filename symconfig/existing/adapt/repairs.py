"""Changes of Megatron-LM's options and of the environment that may mend what an audit finds."""

from __future__ import annotations

import re
from collections.abc import Iterator

from symconfig.existing.adapt.draft import Progress
from symconfig.existing.adapt.families import TOUCHED, Wish, having
from symconfig.existing.adapt.goal import Goal
from symconfig.existing.adapt.launcher import unset
from symconfig.existing.adapt.mending import because
from symconfig.existing.adapt.ways import change, granted
from symconfig.existing.launch.reading import Setting
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.rules.rule import Finding

_OPTION = re.compile(r"--[A-Za-z][\w-]*")


def repairs(progress: Progress, goal: Goal, finding: Finding) -> Iterator[Progress]:
    """Yield the progress with one option otherwise, of those that the finding is about or names: as the plan's own
    files have it, without it, or with a value that the finding asks for."""
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
    """Return the destinations that may be touched, of the option in question, the one at its place, and all that the
    sentence names."""
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
