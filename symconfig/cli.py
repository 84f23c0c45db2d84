"""The command line: parses, calls one function, prints. Knows every exit code.

Exit codes: 0 done; 1 no feasible plan or a check failed; 2 bad input; 130 interrupted; 141 the reader of standard
output went away; 70 a defect of symconfig itself. Nothing heavy is imported here: each command does it on its own.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from symconfig import __version__
from symconfig.errors import InputError, Problem, SymconfigError

INTERRUPTED, BROKEN_PIPE, DEFECT = 130, 141, 70
_DESCRIPTION = "Plans how a large model is split over a cluster, and writes the files that start it."
DEBUG_VARIABLE = "SYMCONFIG_DEBUG"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in the words of every other error, without the wall of usage."""

    def error(self, message: str) -> NoReturn:
        raise InputError(Problem(message, hint=f"{self.prog} --help"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Never shows a traceback unless SYMCONFIG_DEBUG is set."""
    words = list(sys.argv[1:] if argv is None else argv)
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
        problem = Problem(error.strerror or str(error), file=str(error.filename) if error.filename else None)
        return _fail((problem,), InputError.exit_code, as_json)
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        what = f"symconfig stopped on a defect of its own: {type(error).__name__}: {error}".rstrip(". ")
        hint = f"{DEBUG_VARIABLE}=1 to see where, and report it with the command and its input"
        return _fail((Problem(what, hint=hint),), DEFECT, as_json)


def _run(words: list[str]) -> int:
    parser = _parser()
    end = words.index("--") if "--" in words else len(words)
    arguments, unknown = parser.parse_known_args(words[:end])
    if end < len(words):  # what follows is a script's own
        if not hasattr(arguments, "extra"):
            unknown.append("--")
        arguments.extra = words[end + 1 :]
    if unknown:
        raise InputError([_unknown(word, arguments.command_parser) for word in unknown])
    command: Callable[[argparse.Namespace], int] = arguments.command
    return command(arguments)


def _unknown(word: str, parser: argparse.ArgumentParser) -> Problem:
    """An option that no command has, with the nearest one that exists."""
    known = [option for action in parser._actions for option in action.option_strings]
    near = difflib.get_close_matches(word.partition("=")[0], known, n=1)
    return Problem(f"unknown argument {word!r}", hint=near[0] if near else f"{parser.prog} --help")


def _fail(problems: Sequence[Problem], code: int, as_json: bool) -> int:
    """Say what is wrong on standard error, and as JSON on standard output where JSON was asked for."""
    from symconfig.format import clean

    try:
        for problem in problems:
            print(f"error: {clean(str(problem))}", file=sys.stderr)
        if as_json:
            found = [{name: getattr(problem, name) for name in Problem.__slots__} for problem in problems]
            print_json({"schema": "symconfig.error/1", "exit_code": code, "problems": found})
            sys.stdout.flush()
    except BrokenPipeError:
        return _broken_pipe()
    return code


def _broken_pipe() -> int:
    """Nobody reads any more (`| head`): keep the interpreter from complaining when it flushes at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(devnull, stream.fileno())
        except (OSError, ValueError):
            continue
    return BROKEN_PIPE


def print_json(value: Any) -> None:
    """The one way in which JSON reaches standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def _parser() -> _Parser:
    parser = _Parser(prog="symconfig", allow_abbrev=False, description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"symconfig {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    for add in (_plan, _replan, _diff, _fallback, _audit, _adapt, _partition, _render, _args, _check, _formats,
                _checkpoint, _verify, _measure, _explain, _timeline, _validate, _calibrate, _sweep, _size, _import,
                _doctor):
        command = add(commands)
        command.add_argument("--json", action="store_true", help="JSON on standard output, messages on standard error")
        command.set_defaults(command_parser=command)
    return parser


_Commands = Any  # argparse's class is private


def _command(commands: _Commands, name: str, does: str, run: str, module: str = "cli_commands") -> _Parser:
    """A subparser whose command is the function `run` of this module of symconfig, imported when it is called."""

    def call(arguments: argparse.Namespace) -> int:
        code: int = getattr(importlib.import_module(f"symconfig.{module}"), run)(arguments)
        return code

    parser: _Parser = commands.add_parser(name, help=does, description=does, allow_abbrev=False)
    parser.set_defaults(command=call)
    return parser


def _plan(commands: _Commands) -> _Parser:
    parser = _command(commands, "plan", "find the fastest configuration that fits, and write its files", "plan")
    add = parser.add_argument
    add("job", nargs="?", metavar="JOB.yaml", help="the job as a file; options below override what it says")
    _job(parser)
    _answer(parser)
    return parser


def _job(parser: _Parser) -> None:
    """Options that are fields of a job."""
    what = parser.add_argument_group("the job")
    what.add_argument("--model", metavar="M", help="zoo name, or path of a descriptor or a config.json")
    what.add_argument("--cluster", metavar="C", help="zoo name, or path of a descriptor")
    what.add_argument("--gpus", metavar="N", help="how many GPUs, all of them used; auto: the fewest that fit")
    what.add_argument("--global-batch-size", metavar="G", help="sequences per optimizer step")
    what.add_argument("--seq-length", metavar="S", help="tokens (default: the smaller of the model's and 4096)")
    what.add_argument("--backend", metavar="B", help="megatron (default) or deepspeed (default for adapters)")
    what.add_argument("--megatron-version", metavar="V", help="core_v0.12 to core_v0.19 (default), or dev")
    what.add_argument("--task", metavar="T", help="pretrain, sft or lora (default: lora for an adapter, else pretrain)")
    what.add_argument("--precision", metavar="P", help="bf16, fp16, fp8, mxfp8, nvfp4, or auto for the fastest")
    what.add_argument("--attention", metavar="A", help="flash (default, where the GPU has it) or unfused")
    what.add_argument("--objective", metavar="O", help="time (default) or symtensor")
    what.add_argument(
        "--pin",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="fix or bound a choice: tp=8, pp=2..8, vpp=..4, recompute=full, zero=1; may be repeated",
    )
    what.add_argument("--memory-margin", metavar="SHARE", help="share of the GPU's memory left free (default 0.04)")
    what.add_argument("--expert-imbalance", metavar="X", help="busiest expert rank over the mean (default 1.0)")


def _answer(parser: _Parser) -> None:
    """How much of the answer is shown, and where its files go."""
    from symconfig.cli_files_options import add_files

    out = parser.add_argument_group("the answer")
    out.add_argument("--top", metavar="K", default="5", help="how many candidates to rank (default 5)")
    out.add_argument("--out", metavar="DIR", help="write plan.json, the launcher and the report there")
    out.add_argument("--force", action="store_true", help="write into a folder that exists")
    add_files(out)


def _replan(commands: _Commands) -> _Parser:
    from symconfig.cli_replan_options import add_replan

    does = "solve a plan's inputs again: what changes and why, and whether its checkpoint still loads"
    parser = _command(commands, "replan", does, "replan", "cli_replan")
    add_replan(parser)
    _job(parser)
    _answer(parser)
    return parser


def _diff(commands: _Commands) -> _Parser:
    from symconfig.cli_replan_options import add_diff

    parser = _command(commands, "diff", "in what two plans differ", "diff", "cli_diff")
    add_diff(parser)
    return parser


def _fallback(commands: _Commands) -> _Parser:
    from symconfig.cli_files_options import add_files

    does = "plan beforehand for a cluster that loses nodes, with a launch script that takes the plan that fits"
    parser = _command(commands, "fallback", does, "fallback", "cli_fallback")
    add = parser.add_argument
    add("plan", metavar="PLAN.json", help="a plan, or the folder that holds it")
    add("--lose-nodes", metavar="N", default="1..4", help="how many nodes fewer: 2, or 1..4 (default)")
    add("--out", metavar="DIR", help="write nodes-N/ for every plan there, and the launch.sh above them")
    add("--force", action="store_true", help="write into a folder that exists")
    add_files(parser)
    return parser


def _audit(commands: _Commands) -> _Parser:
    from symconfig.cli_audit_options import add_audit

    does = "read an existing launch script or config: what it will do, what is wrong, what would be better"
    parser = _command(commands, "audit", does, "audit", "cli_audit")
    add_audit(parser)
    return parser


def _adapt(commands: _Commands) -> _Parser:
    from symconfig.cli_audit_options import add_adapt

    parser = _command(commands, "adapt", "put a plan's values into an existing launch script or config", "adapt",
                      "cli_adapt")
    add_adapt(parser)
    return parser


def _partition(commands: _Commands) -> _Parser:
    from symconfig.cli_partition_options import add_options

    does = "find a split for every operator and tensor of any graph"
    parser = _command(commands, "partition", does, "partition", "cli_partition")
    add_options(parser)
    return parser


def _render(commands: _Commands) -> _Parser:
    from symconfig.cli_files_options import add_files

    parser = _command(commands, "render", "write the files of a plan for a target", "render")
    parser.add_argument("plan", metavar="PLAN.json", help="what `symconfig plan --out` or `--json` gave, or its folder")
    add_files(parser)
    parser.add_argument("--out", metavar="DIR", required=True)
    parser.add_argument("--force", action="store_true", help="write into a folder that exists")
    return parser


def _args(commands: _Commands) -> _Parser:
    does = "print the words of a plan's program, for $(...) in a script of your own"
    parser = _command(commands, "args", does, "args", "cli_args")
    add = parser.add_argument
    add("plan", metavar="PLAN.json", help="a plan, or the folder that holds it")
    add("--target", metavar="T", help="whose program (default: the framework that the plan was made for)")
    add("--null", action="store_true", help="end every word with a NUL, for mapfile -d '' and xargs -0")
    held = parser.add_argument_group("held against this machine first; exit 1 where it is another one")
    held.add_argument("--check", action="store_true", help="WORLD_SIZE and the installed release against the plan")
    held.add_argument("--world-size", metavar="N", help="how many GPUs this start has (default: WORLD_SIZE)")
    held.add_argument("--replan", action="store_true", help="solve again for what is here, instead of failing")
    return parser


def _check(commands: _Commands) -> _Parser:
    does = "whether the files of a plan were edited or are stale, for CI: exit 1 when they are"
    parser = _command(commands, "check", does, "check", "cli_check")
    add = parser.add_argument
    add("place", metavar="DIR", help="what `plan --out` or `render` wrote, or a PLAN.json alone")
    add("--templates", metavar="DIR", help="your own templates, where they were written with some")
    add("--solve", action="store_true", help="also solve again, and say if another plan is best now")
    return parser


def _formats(commands: _Commands) -> _Parser:
    does = "what a plan can be written as, what can start it, and which of it can carry a certain plan"
    parser = _command(commands, "formats", does, "formats", "cli_formats")
    parser.add_argument("plan", nargs="?", metavar="PLAN.json", help="say which formats can carry this plan")
    parser.add_argument("--templates", metavar="DIR", help="with the templates of your own")
    return parser


def _checkpoint(commands: _Commands) -> _Parser:
    does = "what kind of checkpoint a folder holds, and whether a plan's run can go on from it"
    parser = _command(commands, "checkpoint", does, "checkpoint", "cli_checkpoint")
    add = parser.add_argument
    add("folder", metavar="DIR", help="of Megatron-LM, DeepSpeed, Hugging Face or PEFT; nothing in it is unpickled")
    add("--plan", metavar="NEW.json", help="the plan of the run that shall load it, or its folder")
    add("--old", metavar="OLD.json", help="the plan of the run that saved it (default: as NEW, but for what DIR says)")
    return parser


def _verify(commands: _Commands) -> _Parser:
    parser = _command(commands, "verify", "hold rendered files against the real frameworks", "verify")
    parser.add_argument("folder", metavar="DIR", help="what `plan --out` wrote")
    parser.add_argument(
        "--build",
        action="store_true",
        help="let the framework build ranks of the plan, and compare what they hold with the plan",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="also run the modules of those ranks without memory, and compare what they keep for the "
        "backward, tensor by tensor (with --build, which it implies)",
    )
    parser.add_argument("--megatron", metavar="PATH", help="a Megatron-LM checkout, instead of the fetched source")
    parser.add_argument("--timeout", metavar="S", help="seconds for each run of a framework (default 120)")
    return parser


def _measure(commands: _Commands) -> _Parser:
    parser = _command(
        commands,
        "measure",
        "run one rank of a plan, or a GPU's kernels, on one GPU and time it",
        "measure",
        "cli_measure",
    )
    add = parser.add_argument
    add("folder", nargs="?", metavar="DIR", help="what `plan --out` wrote for Megatron-LM")
    add("--out", metavar="FILE.yaml", help="write the measurements there (with --kernels: the cluster profile)")
    add("--force", action="store_true", help="replace FILE.yaml if it exists")
    add("--device", metavar="D", help="cuda or cpu (default: cuda); on cpu nothing is said of memory")
    add(
        "--cluster",
        metavar="C",
        help="zoo name, or path of a descriptor, with this GPU (default: DIR's; with --kernels by the GPU's name)",
    )
    rank = parser.add_argument_group("a rank of DIR's plan: the real module, with a network that only pretends")
    rank.add_argument("--rank", metavar="R", help="default: 0; heaviest: a rank of the stage that needs most memory")
    rank.add_argument("--steps", metavar="N", help="optimizer steps, of which the first is a warm-up (default 3)")
    rank.add_argument(
        "--transformer-impl",
        metavar="T",
        help="transformer_engine or local (default: the former where it is installed)",
    )
    rank.add_argument("--megatron", metavar="PATH", help="a Megatron-LM checkout, instead of the fetched source")
    rank.add_argument("--timeout", metavar="S", help="seconds that a step may take (default 600, on cpu 120)")
    kernels = parser.add_argument_group("the GPU's kernels")
    kernels.add_argument(
        "--kernels",
        action="store_true",
        help="measure the rates of this GPU's kernels as constants of a cluster's profile; no DIR",
    )
    kernels.add_argument("--budget", metavar="S", help="seconds to measure for (default 60)")
    kernels.add_argument("--raw", metavar="FILE.yaml", help="write each kernel's time there (symconfig.kernel_times/1)")
    kernels.add_argument("--times", metavar="FILE.yaml", help="fit to such a file's times instead of measuring")
    return parser


def _explain(commands: _Commands) -> _Parser:
    what = "the formulas of a plan, what binds, the runner-up, how every tensor is split"
    parser = _command(commands, "explain", what, "explain")
    parser.add_argument("plan", metavar="PLAN.json", help="a plan, or the folder that holds it")
    return parser


def _timeline(commands: _Commands) -> _Parser:
    parser = _command(
        commands, "timeline", "draw the schedule of a plan, stage by stage, with its memory", "timeline", "cli_timeline"
    )
    add = parser.add_argument
    add("plan", metavar="PLAN.json", help="a plan, or the folder that holds it")
    add("--candidate", metavar="N", help="which one of the plan's ranking (default 1, the best)")
    add("--schedule", metavar="NAME", help="as another schedule would run it, also one that no framework has")
    add("--compare", action="store_true", help="also a table of all schedules: step, idle share, memory, where it runs")
    add("--svg", metavar="FILE.svg", help="draw it as a picture")
    add("--png", metavar="FILE.png", help="the same as PNG; needs matplotlib")
    add("--force", action="store_true", help="replace pictures that exist")
    add("--width", metavar="N", help="letters in a line (default: the terminal's, or 120)")
    return parser


def _validate(commands: _Commands) -> _Parser:
    parser = _command(commands, "validate", "predictions against measured runs", "validate")
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="measured runs (symconfig.measurements/1), or folders of such files")
    add("--plot", metavar="FILE.png", help="draw predicted against measured seconds (png, svg or pdf)")
    add("--explain", metavar="ID", help="one row only: what it states, what was assumed, and where the error may be")
    return parser


def _calibrate(commands: _Commands) -> _Parser:
    parser = _command(commands, "calibrate", "fit the constants of a GPU type to measured runs", "calibrate")
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help="measured runs (symconfig.measurements/1, .yaml), or folders of them, or logs of Megatron-LM or DeepSpeed",
    )
    add("--cluster", metavar="C", help="zoo name, or path of a descriptor: only runs on its type of GPU")
    add(
        "--from-scratch",
        action="store_true",
        help="forget what the cluster says of its kernels, and start from what is true of any GPU",
    )
    add("--out", metavar="PROFILE.yaml", help="write the cluster with its fitted constants, for `plan --cluster`")
    add("--force", action="store_true", help="replace PROFILE.yaml if it exists")
    log = parser.add_argument_group("what a log does not say (Megatron-LM's says all)")
    log.add_argument("--model", metavar="M", help="zoo name, or path of a descriptor or a config.json")
    log.add_argument("--gpus", metavar="N", help="how many GPUs it ran on")
    log.add_argument("--micro-batch-size", metavar="B", help="sequences of one GPU at a time")
    log.add_argument("--global-batch-size", metavar="G", help="sequences per optimizer step")
    log.add_argument("--seq-length", metavar="S", help="tokens")
    log.add_argument("--recompute", metavar="R", help="none, selective or full")
    return parser


def _sweep(commands: _Commands) -> _Parser:
    from symconfig.cli_sweep_options import add_sweep

    does = "plan many combinations of a job's fields, into one table"
    parser = _command(commands, "sweep", does, "sweep", "cli_sweep")
    add_sweep(parser)
    return parser


def _size(commands: _Commands) -> _Parser:
    from symconfig.cli_sweep_options import add_size

    does = "how many GPUs of which cluster meet a deadline, at what cost"
    parser = _command(commands, "size", does, "size", "cli_size")
    add_size(parser)
    return parser


def _import(commands: _Commands) -> _Parser:
    parser = _command(commands, "import", "turn a Hugging Face config.json into a descriptor", "import_config")
    parser.add_argument("config", metavar="CONFIG.json")
    parser.add_argument("--out", metavar="FILE", help="write the descriptor there instead of to standard output")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    return parser


def _doctor(commands: _Commands) -> _Parser:
    return _command(commands, "doctor", "versions, data folders, and what can be verified on this machine", "doctor")
