"""`symconfig replan`: a plan's recorded inputs, with the options over them, solved again."""

from __future__ import annotations

import argparse
import re

from symconfig.cli.options import add_answer, add_job
from symconfig.cli.options import wanted as files_wanted
from symconfig.cli.shared import MOST_TOP, PAGE, Outputs, answer, as_option, file_of, output, ranged, working
from symconfig.errors import InputError, reworded

NAME = "replan"
DOES = "solve a plan's inputs again: what changes and why, and whether its checkpoint still loads"
EXAMPLES = (
    "symconfig replan out --gpus 32",
    "symconfig replan out --global-batch-size 2048 --keep tp,pp --out again",
)

_STEP = re.compile(r"[0-9]{1,9}")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN.json", help="the plan, or the folder that holds it")
    parser.set_defaults(job=None)  # the recorded job is what the options lie above
    parser.add_argument(
        "--accept-edits", action="store_true", help="solve a plan whose inputs were edited in the file as they are"
    )
    group = parser.add_argument_group("the old plan")
    group.add_argument(
        "--keep", metavar="NAMES", help="choices that stay: tp,pp,vpp,cp,ep,etp,dp,mbs,zero,sp,recompute,precision, ..."
    )
    group.add_argument("--release", metavar="NAMES", help="recorded pins that are free now")
    run = parser.add_argument_group("the run")
    run.add_argument("--checkpoint", metavar="DIR", help="what it has saved: its kind, and its step")
    run.add_argument("--at-step", metavar="K", help="iterations done (default: as the checkpoint or the plan says)")
    run.add_argument(
        "--schedule",
        metavar="S",
        help="keep (default): the same tokens and learning rate of each; as-is: the same iterations",
    )
    add_job(parser)
    add_answer(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit 0: there is a plan; 1: none, or none that keeps what was asked; 2: bad input."""
    from symconfig.api import planning as api
    from symconfig.api import replan as api_replan
    from symconfig.cli.job import as_options, request
    from symconfig.report.replan import blocks

    problems = api.Problems()
    job = request(arguments)
    top = problems.collect(lambda: ranged("--top", arguments.top, 1, MOST_TOP))
    step = problems.collect(lambda: _step(arguments.at_step))
    files = problems.collect(lambda: files_wanted(arguments))
    html = output(problems, "--html", arguments.html, arguments.force, PAGE)
    out = file_of(arguments.out or None)
    problems.read(lambda out: api.check_free(out, arguments.force), out)
    wanted = api_replan.Wanted(
        wishes=job.document.data,
        release=_names(arguments.release),
        keep=_names(arguments.keep),
        checkpoint=arguments.checkpoint,
        at_step=step,
        schedule=arguments.schedule or "keep",
        top=top or 1,
        changes=job.changes,
        accept_edits=arguments.accept_edits,
    )
    with reworded(lambda each: as_option(as_options(each, job), arguments)), working() as progress:
        result = api_replan.replan_again(arguments.plan, wanted, (*problems.all, *job.problems), progress)
    shown = blocks(result.found)
    answer(arguments, result.found.new, Outputs(out, files, html), result.to_dict, shown, before=shown)
    return 0


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text is not None else ()


def _step(text: str | None) -> int | None:
    if text is None or _STEP.fullmatch(text):
        return None if text is None else int(text)
    raise InputError("wrong value", field="--at-step", got=text, need="a step from 0")
