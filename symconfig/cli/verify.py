"""`symconfig verify`: rendered files held against the real frameworks, or against what was written."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from pathlib import Path

from symconfig.cli.options import adds, flag, option
from symconfig.cli.shared import file_of, refuse, seconds, show, working
from symconfig.errors import InputError, Problem

DOES = "hold rendered files against the real frameworks, or against what was written (--frozen)"
EXAMPLES = (
    "symconfig verify out",
    "symconfig verify --frozen out",
)


add_options = adds(
    lambda: (
        option("place", "DIR", "what `plan --out` or `render` wrote; with --frozen several, or a PLAN.json", nargs="+"),
        "the real frameworks",
        flag("--build", "let the framework build ranks of the plan, and compare what they hold with the plan"),
        flag(
            "--trace",
            "also run the modules of those ranks without memory, and compare what they keep for the backward (implies "
            "--build)",
        ),
        flag("--run-edited", "also run scripts and programs of the folder that symconfig does not write from its plan"),
        option("--megatron", "PATH", "a Megatron-LM checkout, instead of the fetched source"),
        option("--timeout", "S", "seconds for each run of a framework (default 120)", type=seconds(1.0, 86400.0)),
        "what was written, for CI",
        flag("--frozen", "start no framework; exit 1 where files were edited or are stale"),
        option("--templates", "DIR", "your own templates, where they were written with some"),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Print the checks by `_real`, or with --frozen by `_frozen`; return their exit code, 1 if a check failed. Raises
    InputError for options of the other check, and for several places unless --frozen.
    """
    problems = arguments.problems
    if arguments.frozen:
        if len(arguments.place) > 1:
            refuse(arguments, ("json",), "is for one at a time", got=f"{len(arguments.place)} places")
        refuse(
            arguments, ("build", "trace", "run_edited", "megatron", "timeout"), "runs a framework, and --frozen none"
        )
        return _frozen(arguments)
    refuse(arguments, ("templates",), "is of another check", need="--frozen")
    if len(arguments.place) > 1:
        what, got = "is for one folder at a time", f"{len(arguments.place)}"
        problems.add(Problem(what, field="DIR", got=got, need="--frozen"))
    if problems.all:
        raise InputError(problems.all)
    return _real(arguments)


def _real(arguments: argparse.Namespace) -> int:
    """Run the checks with the real frameworks in a folder and print them; return 1 if one failed, else 0. Raises
    InputError if it is no folder or has no plan, and as `verify` does.
    """
    from symconfig.report.verify import checked as blocks
    from symconfig.verify.checks import TIMEOUT_S, passed, verify

    (place,) = arguments.place
    folder = Path(place)
    if not folder.is_dir():
        what = "this is no folder" if folder.exists() else "there is no such folder"
        raise InputError(what, file=place, hint="symconfig plan ... --out DIR")
    with working() as progress:
        checks = verify(
            folder,
            megatron=file_of(arguments.megatron or None),
            timeout_s=arguments.timeout or TIMEOUT_S,
            progress=progress.say,
            build=arguments.build,
            trace=arguments.trace,
            run_edited=arguments.run_edited,
        )
    data = {"schema": "symconfig.verify/1", "folder": str(folder), "passed": passed(checks)}
    show(arguments, lambda: data | {"checks": [asdict(check) for check in checks]}, lambda: blocks(folder, checks))
    return 0 if passed(checks) else 1


def _frozen(arguments: argparse.Namespace) -> int:
    """Print the check of each place against its manifest; return 1 if one failed, else 0. If an option was wrong,
    nothing is checked. Raises InputError with the places that could not be read, after all others were printed.
    """
    from symconfig.api.frozen import verify_frozen
    from symconfig.report.verify import frozen, frozen_data

    passed, problems = True, arguments.problems
    for place in () if problems.all else arguments.place:
        checked = problems.collect(partial(verify_frozen, place, arguments.templates))
        if checked is None:
            continue
        passed &= checked.passed
        shown = [*([place] if len(arguments.place) > 1 else []), *frozen(checked)]
        show(arguments, partial(frozen_data, checked), partial(list, shown))
    if problems.all:
        raise InputError(problems.all)
    return 0 if passed else 1
