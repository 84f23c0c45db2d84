"""`symconfig adapt`: a plan's values in a person's own launch files, and nothing else changed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli.options import PLAN, adds, flag, option, script, variables
from symconfig.cli.shared import plan_of, print_json, write_data
from symconfig.errors import InputError
from symconfig.format import masked

if TYPE_CHECKING:
    from symconfig.existing.adapt.draft import Adapted

DOES = "put a plan's values into an existing launch script or config"
EXAMPLES = (
    "symconfig adapt train.sh --plan out",
    "symconfig adapt train.sh --plan out --in-place",
)


add_options = adds(
    lambda: (
        option(
            "source",
            "FILE|ARGS",
            "launch script, YAML, DeepSpeed JSON, or a line of arguments; nothing of it is executed",
        ),
        option("--plan", "PLAN.json", PLAN, required=True),
        flag("--in-place", "write the files, all or none (default: only show what would change)"),
        flag("--partial", "with --in-place: write also where something is left to do by hand, or an error is found"),
        *script(),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Print the diff (or JSON), and with --in-place write the files if the whole plan is in them and their audit finds
    no error, or if --partial is given; return the exit code.

    0: the whole plan is (or would be) in the files and their audit finds no error; 1: something is left to do by hand,
    or an error. The report goes to standard error. Raises InputError, also for --partial without --in-place and for
    writing a line of options.
    """
    from symconfig.api import existing

    problems = arguments.problems
    plan = problems.collect(lambda: plan_of(arguments.plan))
    given = problems.collect(lambda: variables(arguments.set))
    if plan is None or given is None or problems.all:
        raise InputError(problems.all)
    if arguments.partial and not arguments.in_place:
        raise InputError("applies to writing alone", field="--partial", need="--in-place")
    outcome = existing.adapt(
        arguments.source,
        plan,
        variables=given,
        arguments=tuple(arguments.extra),
        root=arguments.root,
    )
    written = arguments.in_place and bool(outcome.files) and (outcome.done or arguments.partial)
    if written:
        from symconfig.existing.adapt.files import write
        from symconfig.existing.launch.read import ARGUMENTS

        file = outcome.reading.file
        if file == ARGUMENTS:
            raise InputError("there is no file to write: the options were given as a line", field="--in-place")
        write(outcome.files, {text.file: text for text in outcome.reading.texts}, Path(file).parent)
    if arguments.json:
        print_json(outcome.to_dict(written) | {"plan": {"best": plan.best.to_dict()}})
    else:
        write_data(masked(outcome.diff))
    # What was done goes to standard error: standard output is the diff.
    from symconfig.report.grid import present, show, titled

    loads = f"Whether an old checkpoint loads: symconfig checkpoint DIR --plan {arguments.plan}"
    blocks = present(
        titled("Changed", (f"{change}." for change in outcome.changes)),
        titled("Not done", (f"{item}." for item in outcome.unplaced)),
        titled("An audit of the result finds errors", outcome.flaws),
        loads if outcome.changes else "",
        titled("Worth knowing", outcome.notes),
    )
    show([*blocks, _end(outcome, arguments.in_place, written)], sys.stderr)
    return 0 if outcome.done else 1


def _end(outcome: Adapted, in_place: bool, written: bool) -> str:
    """Return the closing sentence: nothing had to change, the files written, or why none was and what writes them."""
    if not outcome.changes and not outcome.unplaced:
        return f"{outcome.reading.file} has the plan's values already; nothing was changed."
    if written:
        return f"Wrote {', '.join(outcome.files)}."
    if in_place and outcome.files:
        why = "an audit of the result finds errors" if outcome.flaws else "not all could be placed"
        return f"Nothing was written, because {why}; --partial writes what could be placed."
    return "Nothing was written; --in-place does." if outcome.files else "Nothing was written."
