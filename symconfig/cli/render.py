"""Commands on the files of a plan: `render` writes them, or the words of its program, and `verify` checks them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli.options import PLAN, Command, files, flag, option, wanted
from symconfig.cli.shared import (
    file_of,
    folder,
    plan_of,
    print_json,
    refuse,
    replaced,
    show,
    whole,
    within,
    working,
    write_data,
    wrote,
)
from symconfig.errors import InputError, Problem, among
from symconfig.resources import missing

if TYPE_CHECKING:
    from symconfig.plans.plan import Plan

MAPFILE = "mapfile -d '' ARGS < <(symconfig render PLAN.json --print --null), then \"${ARGS[@]}\""
# bash splits what `$(…)` gives at white space, and then takes words with these for patterns of file names; of the last
# two, where extglob is on.
_PATTERN = re.compile(r"[*?\[\\]|[+@!]\(")
_OPTION = re.compile(r"(--[^=]+|[a-z_]+(?:\.\w+)+(?==))")  # --lr, or Hydra's optimizer.lr=


def with_words() -> list[str]:
    """Return the names of the targets whose program takes command-line words."""
    from symconfig.render import targets

    return [name for name, target in targets().items() if target.words is not None]


def words(plan: Plan, target: str) -> list[str]:
    """Return the command-line words for a target's program. Raises InputError for a target without words,
    InfeasibleError for what the target cannot run, and what its `words` raises.
    """
    from symconfig.render import targets

    known = targets().get(target)
    if known is None or known.words is None:
        what = "is no target whose program takes words"
        raise InputError(what, field="target", got=repr(target), **among(target, with_words()))
    known.refuse(plan)
    return list(known.words(plan))


def unsafe(words: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each word that unquoted `$(…)` in bash would split, drop or expand as a file pattern."""
    option = "the first word"
    for word in words:
        if named := _OPTION.match(word):
            option = named[0]
        what = "would be lost" if not word else "would be split" if word.split() != [word] else ""
        if _PATTERN.search(word) and not what:
            what = "may be replaced by names of files"
        if what:
            yield Problem(f"{what} in $(symconfig render ... --print)", field=option, got=repr(word), hint=MAPFILE)


def run_render(arguments: argparse.Namespace) -> int:
    """Write the plan's files and name them (--json: as JSON), or with --print print the program's words; return 0.
    Raises InputError, also for options of the other mode and for neither --out nor --print, and MismatchError (exit 1)
    if --check finds that this machine does not match the plan.
    """
    from symconfig.api.files import remarks, write

    problems = arguments.problems
    if arguments.print:
        refuse(arguments, ("launcher", "templates", "out", "force"), "is for files, and --print writes none")
    else:
        refuse(arguments, ("null", "check", "world_size"), "only changes what --print prints", need="--print")
        if arguments.out is None:
            problems.add(Problem("this argument is missing", field="--out", need="--out DIR, or --print"))
    out = folder(arguments)
    plan = problems.collect(lambda: plan_of(arguments.plan))
    files = None if arguments.print else problems.collect(lambda: wanted(arguments))
    plan = problems.need(plan)
    if out is None or files is None:
        return _print(arguments, plan)
    written = write(plan, out, files, arguments.force, replaced)
    if arguments.json:
        data = {"schema": "symconfig.render/1", "target": files.of_plan(plan), "folder": str(out)}
        print_json(data | {"files": [str(path.relative_to(out)) for path in written]})
    else:
        wrote(out, written, False, remarks(plan, files))
    return 0


def _print(arguments: argparse.Namespace, plan: Plan) -> int:
    """Print the words of the plan's program, one per line, NUL-terminated (--null) or as JSON; return 0. Program:
    --target, else the plan's target if it has words, else its framework. With --check or --world-size the plan is first
    compared with the machine or fitted to that number of processes. Raises InputError for words that `$(…)` would
    change, unless --null or --json is given; MismatchError.
    """
    from symconfig.frameworks.known import entry_of
    from symconfig.runs.start import started

    target = arguments.target or (plan.job.target if plan.job.target in with_words() else plan.best.target.backend)
    if arguments.check or arguments.world_size is not None:
        plan = started(plan, entry_of(target, plan), arguments.world_size)
    options = words(plan, target)
    if arguments.json:
        data = {"schema": "symconfig.args/1", "target": target, "world_size": plan.best.configuration.world_size}
        print_json(data | {"words": options})
    elif arguments.null:
        write_data("".join(f"{word}\0" for word in options))
    elif wrong := list(unsafe(options)):
        raise InputError(wrong)
    else:
        write_data("".join(f"{word}\n" for word in options))
    return 0


def run_verify(arguments: argparse.Namespace) -> int:
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
    problems.check()
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
        hint = "symconfig plan ... --out DIR"
        if folder.exists():
            raise InputError("this is no folder", file=place, hint=hint)
        raise InputError([missing(folder, "there is no such folder", hint)])
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
    problems.check()
    return 0 if passed else 1


COMMANDS = (
    Command(
        name="render",
        does="write the files of a plan for a target, or print the words of its program",
        examples=(
            "symconfig render out --target bridge --out bridge",
            "torchrun --nproc-per-node 8 pretrain_gpt.py $(symconfig render out --print)",
        ),
        rows=lambda: (
            option("plan", "PLAN.json", PLAN),
            *files(),
            option("--out", "DIR", "folder that they are written into"),
            flag("--force", "write into a folder that exists"),
            "the words of its program, for $(...) in a script of your own",
            flag("--print", "print them, and write no files"),
            flag("--null", "end every word with a NUL, for mapfile -d '' and xargs -0"),
            flag("--check", "exit 1 where WORLD_SIZE or the installed release is not the plan's"),
            option("--world-size", "N", "the same, with the GPUs of this start (default: WORLD_SIZE)", type=whole),
        ),
        run=run_render,
    ),
    Command(
        name="verify",
        does="check rendered files against the real frameworks, or against what was written (--frozen)",
        examples=("symconfig verify out", "symconfig verify --frozen out"),
        rows=lambda: (
            option(
                "place", "DIR", "what `plan --out` or `render` wrote; with --frozen several, or a PLAN.json", nargs="+"
            ),
            "the real frameworks",
            flag("--build", "let the framework build ranks of the plan, and compare what they hold with the plan"),
            flag(
                "--trace",
                "also run the modules of those ranks without memory, and compare what they keep for the backward "
                "(implies --build)",
            ),
            flag(
                "--run-edited",
                "also run scripts and programs of the folder that symconfig does not write from its plan",
            ),
            option("--megatron", "PATH", "a Megatron-LM checkout, instead of the fetched source"),
            option(
                "--timeout",
                "S",
                "seconds for each run of a framework (default 120)",
                type=within(float, 1, 86400, "seconds from 1 to 86400"),
            ),
            "what was written, for CI",
            flag("--frozen", "start no framework; exit 1 where files were edited or are stale"),
            option("--templates", "DIR", "your own templates, if the files were written with some"),
        ),
        run=run_verify,
    ),
)
