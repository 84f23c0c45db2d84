"""The command line: parses, calls one function, prints. Knows every exit code.

Exit codes: 0 done; 1 no feasible plan or a check failed; 2 bad input; 130 interrupted; 141 the reader of standard
output went away; 70 a defect of symconfig itself. Nothing heavy is imported here: each command does it on its own.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from itertools import zip_longest
from textwrap import fill
from typing import Any, NoReturn

from symconfig.cli.options import Command, job_options
from symconfig.cli.shared import INTERRUPTED, note, print_json
from symconfig.errors import MISSING_FIELD, InputError, Problem, Problems, SymconfigError, among, nearest, reworded
from symconfig.install import VERSION

BROKEN_PIPE, DEFECT = 141, 70
# New objects between two looks for cycles among them. A command makes few cycles, and Python's own 700 take 4 % of it.
COLLECT_AFTER = 100_000
_DESCRIPTION = "Plans how a large model is split over a cluster, and writes the files that start it."
_MORE = "`symconfig COMMAND --help` shows a command's options and an example; `symconfig --version` the version."
DEBUG_VARIABLE = "SYMCONFIG_DEBUG"


# Commands by what a person is about to do, as `symconfig --help` shows them, each with the module beside this one that
# has it among its COMMANDS.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "before training": {
        "plan": "plan", "estimate": "existing", "size": "plan", "sweep": "plan", "serve": "plan",
        "partition": "partition", "render": "render",
    },
    "in an existing pipeline": {"audit": "existing", "adapt": "existing", "verify": "render"},
    "when something changes": {"replan": "replan", "diff": "replan", "checkpoint": "replan"},
    "look closer": {"explain": "explain", "whatif": "explain", "validate": "explain"},
    "models, clusters and recipes": {"list": "list", "import": "list"},
    "this machine": {"doctor": "machine", "measure": "machine", "calibrate": "machine", "completion": "machine"},
}  # fmt: skip
MODULES = {name: module for modules in GROUPS.values() for name, module in modules.items()}
_LISTS = {"--model": "symconfig list models", "--cluster": "symconfig list clusters"}  # for those that are missing
_NO_CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*?)'", re.DOTALL)
_COLUMN, _WIDTH = 14, 78  # where the words beside a command's name start, and how wide they are


def commands(words: Sequence[str]) -> list[Command]:
    """Return the command that the first word names, of which alone the module is imported; all if it names none."""
    names = [word for word in words[:1] if word in MODULES] or MODULES
    modules = {name: import_module(f"symconfig.cli.{MODULES[name]}") for name in names}
    return [next(one for one in module.COMMANDS if one.name == name) for name, module in modules.items()]


class _Parser(argparse.ArgumentParser):
    """A parser that raises InputError instead of printing its usage."""

    groups: Mapping[str, Sequence[argparse.Action]] = {}  # commands by their title

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.wrong: list[Problem] = []  # with the values of options

    def format_help(self) -> str:
        """Return the help text; with `groups` (the parser of all commands) only description, the commands by group and
        epilog.
        """
        if not self.groups:
            return super().format_help()
        formatter = argparse.HelpFormatter(self.prog, max_help_position=_COLUMN)
        formatter.add_text(self.description)
        for title, actions in self.groups.items():
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Return an argument's value; after an InputError record its problems in `wrong` and return its default."""
        try:
            return super()._get_value(action, arg_string)
        except InputError as error:
            field = action.option_strings[0] if action.option_strings else str(action.metavar)
            self.wrong += [problem if problem.field else replace(problem, field=field) for problem in error.problems]
            return action.default

    def error(self, message: str) -> NoReturn:
        """Raise InputError for an error message of argparse: an unknown command or a wrong choice with the nearest one,
        a missing argument with its choices, any other text as it is.
        """
        if (wrong := _NO_CHOICE.match(message)) and wrong[1] == "COMMAND":
            similar = nearest(wrong[2], MODULES, most=1)
            hint = f"symconfig {similar}" if similar else f"{self.prog} --help"
            raise InputError("there is no such command", field=wrong[2], hint=hint)
        choices = {action.metavar or action.dest: list(action.choices) for action in self._actions if action.choices}
        if wrong:
            raise InputError("wrong value", field=wrong[1], got=wrong[2], **among(wrong[2], choices[wrong[1]]))
        _, absent, names = message.partition("the following arguments are required: ")
        if absent:
            need = f"one of {', '.join(choices[names])}" if names in choices else None
            raise InputError("this argument is missing", field=names, need=need, hint=f"{self.prog} --help")
        raise InputError(message, hint=f"{self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are printed to standard error, with --json also as JSON to
    standard output.

    argv: None: sys.argv; none at all, or `help`, shows help. Sets environment variables, the garbage collector's
    threshold, and the streams' error handling. A SymconfigError gives its exit code, an interrupt INTERRUPTED, an
    OSError InputError's code, any other exception DEFECT, without traceback, or is raised if SYMCONFIG_DEBUG is set.
    --help and --version raise SystemExit.
    """
    _open_streams()
    gc.set_threshold(COLLECT_AFTER)
    # The products are small: threads that share them wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Nothing here has a plugin, and to look for some pydantic reads the metadata of every package that is installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in ([], ["help"]):
        words = [*words[1:], "--help"]
    as_json = "--json" in words
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except SymconfigError as error:
        return _fail(error.problems, error.exit_code, as_json)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return _broken_pipe()
    except OSError as error:  # a disk that is full, a file that may not be read
        problem = Problem(error.strerror or str(error), file=str(error.filename or "standard output"))
        return _fail((problem,), InputError.exit_code, as_json)
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        what = f"symconfig stopped on a defect of its own: {type(error).__name__}: {error}".rstrip(". ")
        hint = f"{DEBUG_VARIABLE}=1 to see where, and report it with the command and its input"
        return _fail((Problem(what, hint=hint),), DEFECT, as_json)


def _open_streams() -> None:
    """Replace closed standard streams (`>&-`) by the null device, so that no other file gets their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def _run(words: list[str]) -> int:
    """Parse the words and run their command; return its exit code. Words after a lone `--` become `arguments.extra`.
    Raises InputError with all unknown options (`--` is one for commands without --root), and those of the command with
    fields named as options. Wrong values are in `arguments.problems`, for the command to raise.
    """
    named = words[:1] and not words[0].startswith("-")
    parser = parser_of(words, whole=bool(named))
    end = words.index("--") if "--" in words else len(words)
    arguments, unknown = parser.parse_known_args(words[:end])
    if end < len(words) and not hasattr(arguments, "root"):
        unknown.append("--")
    arguments.extra = words[end + 1 :]  # a script's own
    if unknown:
        raise InputError(list(_unknown(unknown, arguments.command_parser)))
    arguments.problems = Problems(arguments.command_parser.wrong)
    command: Callable[[argparse.Namespace], int] = arguments.command
    with reworded(partial(_as_typed, arguments=arguments)):
        return command(arguments)


def _as_typed(problem: Problem, arguments: argparse.Namespace) -> Problem:
    """Return the problem with its field as it was typed: an option, --pin NAME, --set FIELD of a cluster's, or
    `--cluster: FIELD`; without a place in the job's file if the option was given. Other problems in files, and those of
    fields that are no option of the command, are unchanged. A --set of a job's field is sent to the job's file.
    """
    from symconfig.descriptor.job import Job

    options, field = arguments.command_parser._option_string_actions, problem.field or ""
    section, _, inner = field.partition(".")
    clusters = "--cluster" if "--cluster" in options else "--clusters"
    option = job_options()[field].flag if field in job_options() else "--" + field.replace("_", "-")
    option = {"pins": "--pin", "cluster": clusters}.get(section, option)
    if option not in options:
        return problem
    given, named = getattr(arguments, options[option].dest), option
    if section == "pins":
        given, named = any(word.lower().startswith(f"{inner}=") for word in given), f"--pin {inner}".rstrip()
    elif section == "cluster" and inner:
        changed = (word.partition("=")[0].strip() for word in getattr(arguments, "set", ()))
        name = next(
            (name for name in changed if f"{inner}.".startswith(f"{name}.") or name.startswith(f"{inner}.")), None
        )
        given, named = given or name, f"--set {name}" if name else f"{clusters}: {inner}"
        if name and name.partition(".")[0] in Job.model_fields:
            problem = replace(problem, need="a field of a cluster", hint=f"{name} in the job's file")
    absent = given is None or given is False or given == []  # 0 and "" are given
    if not absent and problem.file == getattr(arguments, "job", None):
        problem = replace(problem, file=None, line=None, column=None)
    if problem.file:
        return problem
    if problem.what == MISSING_FIELD:
        return replace(
            problem, field=named, what="this option is missing", file=None, hint=problem.hint or _LISTS.get(option)
        )
    return replace(problem, field=named, file=None)


def _unknown(words: list[str], parser: argparse.ArgumentParser) -> Iterator[Problem]:
    """Yield a problem for each of `words`, which argparse did not take, but the value after an option. Its hint is the
    command with its positional arguments if one has that name, else a --pin with the value if it is a planner's choice
    and the command has --pin, else the field of that name in a section of the job's file if the command reads one, else
    the nearest option, else --help.
    """
    from symconfig.descriptor.job import pin_meant, section_field

    known = [option for action in parser._actions for option in action.option_strings]
    others = {f"--{one.dest}": str(one.metavar) for one in parser._actions if one.metavar and not one.option_strings}
    usage = " ".join((parser.prog, *others.values()))
    before = ""  # an option that may have a value
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if before and word[:1] != "-":
            before = ""
            continue
        name, _, value = word.partition("=")
        before = name if name.startswith("--") and not value else ""
        pin = pin_meant(name) if "--pin" in known and name.startswith("--") else None
        value = value or (following if following[:1] not in ("", "-") else "VALUE")
        field = section_field(name) if "--job" in others else None
        similar = usage if name in others else f"--pin {pin}={value}" if pin else None
        similar = similar or (f"{field} in the job's file" if field else nearest(name, known))
        yield Problem(f"unknown argument {word!r}", hint=similar or f"{parser.prog} --help")


def _fail(problems: Sequence[Problem], code: int, as_json: bool) -> int:
    """Print the problems to standard error, with `as_json` also as JSON to standard output; return `code`, or what
    `_broken_pipe` does if the reader has gone. A full disk is ignored.
    """
    try:
        for problem in problems:
            note(f"error: {problem}")
        if as_json:
            data = [asdict(problem) for problem in problems]
            print_json({"schema": "symconfig.error/1", "exit_code": code, "problems": data})
        sys.stdout.flush()
    except BrokenPipeError:
        return _broken_pipe()
    except OSError:  # the disk is full, to which standard output or standard error go
        _silence()
    return code


def _broken_pipe() -> int:
    """Silence the streams and return the exit code of a closed output (`| head`)."""
    _silence()
    return BROKEN_PIPE


def _silence() -> None:
    """Redirect standard output and error to the null device, so that flushing at exit raises nothing."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(devnull, stream.fileno())
        except (OSError, ValueError):
            continue


def parser_of(words: Sequence[str], *, whole: bool = True) -> argparse.ArgumentParser:
    """Return the parser of the command that the first word names; of all commands if it names none. whole: whether to
    add the commands' options. With --help or -h among the words, a command with `first` options shows only these.
    """
    parser = _Parser(prog="symconfig", allow_abbrev=False, description=_DESCRIPTION, epilog=_MORE)
    parser.add_argument("--version", action="version", version=f"symconfig {VERSION}")
    parsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    named = {}
    for each in commands(words):
        title = f"example{'s' * (len(each.examples) > 1)}:"
        command = parsers.add_parser(
            each.name,
            help=each.does,
            description=fill(each.does, _WIDTH),
            epilog="\n  ".join((title, *(line for one in each.examples for line in one.split("\n")))),
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,  # examples are to be copied
        )
        if whole:
            each.add_options(command)
        command.add_argument("--json", action="store_true", help="JSON on standard output, messages on standard error")
        if each.first:
            command.add_argument("--help-all", action="help", help="show every option and exit")
            for action in command._actions if {"--help", "-h"} & {*words} else ():
                if action.option_strings and not {*action.option_strings} & {"--help", "--help-all", *each.first}:
                    action.help = argparse.SUPPRESS
        command.set_defaults(command=each.run, command_parser=command)
        named[each.name] = parsers._choices_actions[-1]
    parser.groups = {title: [named[name] for name in names if name in named] for title, names in GROUPS.items()}
    return parser
