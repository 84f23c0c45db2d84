"""`symconfig adapt`: a plan's values in a person's own launch files, and nothing else changed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli.options import add_script, variables
from symconfig.cli.shared import note, print_json, write_data
from symconfig.errors import InputError, Problem

if TYPE_CHECKING:
    from symconfig.existing.adapt.outcome import Adapted

NAME = "adapt"
DOES = "put a plan's values into an existing launch script or config"
EXAMPLES = (
    "symconfig adapt train.sh --plan out",
    "symconfig adapt train.sh --plan out --in-place",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `symconfig adapt`."""
    add = parser.add_argument
    add(
        "source",
        metavar="FILE|ARGS",
        help="launch script, YAML, DeepSpeed JSON, or a line of arguments; nothing of it is executed",
    )
    add("--plan", metavar="PLAN.json", required=True, help="a plan, or the folder that holds it")
    add("--in-place", action="store_true", help="write the files, all or none (default: only show what would change)")
    add("--partial", action="store_true", help="with --in-place: write what could be placed where not all could")
    add_script(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit 0: all that the plan decides is in the files, or would be; 1: something has to be put in by hand."""
    from symconfig.api.planning import Problems
    from symconfig.existing.adapt.files import adapted
    from symconfig.plans.file import load_plan

    found = Problems()
    plan = found.collect(lambda: load_plan(Path(arguments.plan)))
    instead = f"symconfig replan {arguments.plan} --set {{}} --out DIR, then --plan DIR"
    given = found.collect(lambda: variables(arguments.set, arguments.source, instead))
    if plan is None or given is None or found.all:
        raise InputError(found.all)
    if arguments.partial and not arguments.in_place:
        raise InputError(Problem("says what to write, and nothing is written", field="--partial", need="--in-place"))
    outcome = adapted(arguments.source, plan, given, tuple(arguments.extra))
    written = arguments.in_place and bool(outcome.files) and (not outcome.unplaced or arguments.partial)
    if written:
        _write(outcome)
    if arguments.json:
        print_json(outcome.to_dict(written))
    else:
        write_data(outcome.diff)
    _say(outcome, arguments, written)
    return 1 if outcome.unplaced else 0


def _write(outcome: Adapted) -> None:
    from symconfig.existing.adapt.write import write
    from symconfig.existing.launch.read import ARGUMENTS

    file = outcome.reading.file
    if file == ARGUMENTS:
        raise InputError(Problem("there is no file to write: the options were given as a line", field="--in-place"))
    write(outcome.files, {text.file: text for text in outcome.reading.texts}, Path(file).parent)


def _say(outcome: Adapted, arguments: argparse.Namespace, written: bool) -> None:
    """What was done, on standard error: standard output is the diff."""
    for change in outcome.changes:
        note(f"{change}.")
    for item in outcome.unplaced:
        note(f"not done: {item}.")
    for text in outcome.notes:
        note(text)
    if not outcome.changes and not outcome.unplaced:
        note(f"{outcome.reading.file} says already what the plan decides; nothing was changed.")
    elif written:
        note(f"wrote {', '.join(outcome.files)}")
    elif arguments.in_place and outcome.files:
        note("Nothing was written, because not all could be placed; --partial writes what could.")
    elif outcome.files:
        note("Nothing was written; --in-place does.")
