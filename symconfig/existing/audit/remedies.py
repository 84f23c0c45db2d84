"""What helps where a value or an option is not known, in this configuration only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from posixpath import basename

from symconfig.errors import Problem
from symconfig.existing.launch.assumed import OPTION
from symconfig.existing.launch.harmless import EVERYTHING
from symconfig.existing.launch.reading import Hides, Reading, Unread

_UNSET = re.compile(r"depends on \$(\w+), which is not set in the script")
_ARGUMENT = re.compile(r"depends on the script's argument \$(\d+)")
_COVERED = re.compile(r"depends on \$(\w+), which (\S+ may set \([^)]*\)(?: or )?)+")
_COVER = re.compile(r"(?:which|or) (\S+) may set \(")
_FILE = re.compile(r"names a file|is a script that is not there|is a configuration of Accelerate")
_SHORT = 40  # characters of a value that a hint shows


def helped(problem: Problem, reading: Reading) -> Problem:
    """Return the problem with what gives the value that it asks for."""
    ways = [way for way in (_remedy(problem, reading), problem.hint) if way]
    return replace(problem, hint=", or ".join(ways)) if ways else problem


def needs_a_value(problem: Problem) -> bool:
    """Tell whether the problem is that nothing gives a variable a value."""
    return _UNSET.search(problem.what) is not None


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
    empty = f"{OPTION} {_name(item)}, if it brings none that matters"
    if unset := _UNSET.search(item.why):
        return f"--set {unset[1]}='OPTIONS', or {empty}"
    if _ARGUMENT.search(item.why):
        return f"the script's own arguments after a lone --, or {empty}"
    if item.options:
        return f"the options themselves in its place, in a copy of the script, or {empty}"
    return empty


def _name(item: Unread) -> str:
    """Return a name for --assume-harmless: the file, if a file is all that is not read there."""
    file = re.search(r"(?:contents of|output of \S+ )(\S+)$", item.why)
    return shlex.quote(file[1]) if file else EVERYTHING


def _remedy(problem: Problem, reading: Reading) -> str | None:
    """Say what gives a value that is not known for this reason; None where nothing but another script does."""
    why = problem.what
    if covered := _COVERED.search(why):
        value = f"--set {covered[1]}=VALUE"
        files = dict.fromkeys(_of_cover(name) for name in _COVER.findall(covered[0]))
        values = {item.option: item.otherwise for item in reading.hidden if item.variable == covered[1]}
        own = {problem.field: values[problem.field]} if problem.field in values else values
        if all(known is None for known in own.values()):
            return value
        known = values.get(problem.field or "") or ""
        then = f" (then {known})" if 0 < len(known) <= _SHORT else ""
        return f"{' '.join(f'{OPTION} {file}' for file in files)}{then}, or {value}"
    if unset := _UNSET.search(why):
        return f"--set {unset[1]}=VALUE"
    if _ARGUMENT.search(why):
        return "the script's own arguments after a lone --"
    return None


def _of_cover(name: str) -> str:
    """Return the name of a file for a command line: without variables that only the script has."""
    return shlex.quote(basename(name) if "$" in name else name)
