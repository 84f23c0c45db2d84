"""What helps where a value or an option is not known, in this configuration only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from symconfig.errors import Problem
from symconfig.existing.launch.reading import Hides, Reading, Unread

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
