"""`symconfig size`: how many GPUs of which cluster."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli.options import add_changes, add_engine, add_page, engine
from symconfig.cli.shared import as_changes, note, page_path, print_json, say, whole, write_page
from symconfig.errors import FailedError, InputError, Problem

if TYPE_CHECKING:
    from symconfig.api.planning import Problems
    from symconfig.runs.sweep.size import Question

NAME = "size"
DOES = "how many GPUs of which cluster meet a deadline, at what cost"
EXAMPLES = ("symconfig size llama3.1-8b --tokens 100B --deadline 30d \\\n    --clusters h100,a100-80gb",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `symconfig size`."""
    parser.add_argument(
        "model", metavar="MODEL", help="zoo name, id of Hugging Face, or path of a descriptor or config.json"
    )
    group = parser.add_argument_group("what is asked")
    add = group.add_argument
    add("--deadline", metavar="T", required=True, help="the time there is: 30d, 12h, 2w")
    add("--tokens", metavar="N", required=True, help="tokens to train on: 2T, 500B")
    add("--clusters", metavar="A,B", default="all", help="zoo names or paths (default: all of the zoo)")
    add_changes(group)
    add("--gpus-max", metavar="N", help="most GPUs (default 16384, or what the cluster has)")
    add("--goodput", metavar="X", default="1", help="share of the time in which steps run (default 1)")
    add("--price", metavar="C=P", action="append", default=[], help="price of a GPU-hour: h100=2.5; may be repeated")
    add = parser.add_argument_group("the job").add_argument
    add("--global-batch-size", metavar="G", help="sequences per optimizer step (default: 4 Mi tokens)")
    add("--batch-tokens", metavar="N", help="the same in tokens: 4M; rounded to an even number of sequences")
    add("--seq-length", metavar="S", help="tokens (default: the smaller of the model's and 4096)")
    add("--backend", metavar="B", help="megatron (default) or deepspeed (default for adapters)")
    add("--megatron-version", metavar="V", help="core_v0.12 to core_v0.19 (default), or dev")
    add("--precision", metavar="P", help="bf16, fp16, fp8, mxfp8, nvfp4, or auto for the fastest")
    add("--pin", metavar="NAME=VALUE", action="append", default=[], help="as for plan: tp=8, pp=2..8; may be repeated")
    add("--memory-margin", metavar="SHARE", help="share of the GPU's memory left free (default 0.04)")
    add_engine(parser)
    add_page(parser)
    parser.add_argument("--plot", metavar="FILE.png", help="draw cost against time (png, svg or pdf); needs matplotlib")


def run(arguments: argparse.Namespace) -> int:
    """Exit 1: no cluster is in time."""
    from symconfig.api.planning import Problems
    from symconfig.report import size_plot
    from symconfig.report.progress import Progress
    from symconfig.report.size import blocks, to_dict
    from symconfig.runs.sweep.size import size

    problems = Problems()
    picture = Path(arguments.plot) if arguments.plot is not None else None
    if picture is not None:
        problems.collect(lambda: size_plot.check(picture))
    html = page_path(arguments.html, True, problems)
    wanted = engine(arguments, problems)
    question = _question(arguments, problems)
    with Progress(sys.stderr) as progress:
        answer = size(question, wanted, lambda done, asked_for: progress.say(f"planned {done:,} of {asked_for:,}"))
    if arguments.json:
        print_json(to_dict(answer))
    else:
        say(blocks(answer))
    if html is not None:
        from symconfig.api.page import report_page
        from symconfig.report.page.pictures import of_size

        title = f"{answer.question.model.name}: GPUs for {answer.question.tokens:,} tokens"
        write_page(html, report_page(title, blocks(answer), [of_size(answer)]), force=True)
    if picture is not None:
        size_plot.plot(answer, picture)
        note(f"wrote {picture}")
    return 0 if answer.met else FailedError.exit_code


def _question(arguments: argparse.Namespace, problems: Problems) -> Question:
    """Read the question.

    Raises InputError with this and all that was found wrong before, in the words of the options.
    """
    from symconfig.api import sweep as api_sweep
    from symconfig.cli.job import OPTIONS, as_options, request
    from symconfig.runs.sweep.size import MOST_GPUS

    for name in ("job", *(option[2:].replace("-", "_") for option in OPTIONS)):  # those of `plan` that `size` has not
        arguments.__dict__.setdefault(name, None)
    most = problems.collect(lambda: whole("--gpus-max", arguments.gpus_max)) or MOST_GPUS
    goodput = problems.collect(lambda: _share("--goodput", arguments.goodput))
    prices = problems.collect(lambda: _prices(arguments.price))
    job = request(arguments)
    clusters = arguments.clusters if arguments.clusters == api_sweep.ALL else _BETWEEN.split(arguments.clusters)
    try:
        return api_sweep.read_size(
            job.document.data,
            arguments.deadline,
            tokens=arguments.tokens,
            clusters=clusters,
            batch_tokens=arguments.batch_tokens,
            most_gpus=most,
            goodput=1.0 if goodput is None else goodput,
            prices=prices or {},
            problems=(*problems.all, *job.problems),
            changes=job.changes,
        )
    except InputError as error:
        problems_there = (_as_option(as_options(problem, job)) for problem in error.problems)
        raise InputError(
            list(dict.fromkeys(as_changes(each, job.changes, "--clusters") for each in problems_there))
        ) from None


# A comma between clusters; one in a cluster's name is followed by a blank, or by a field that is changed.
_BETWEEN = re.compile(r",(?!\s|[A-Za-z_.]+=)")
_FIELDS = {
    "deadline": "--deadline",
    "tokens": "--tokens",
    "batch_tokens": "--batch-tokens",
    "goodput": "--goodput",
    "most_gpus": "--gpus-max",
}


def _as_option(problem: Problem) -> Problem:
    field = problem.field or ""
    if field.startswith("prices."):
        return replace(problem, field="--price", got=problem.got or field.removeprefix("prices."))
    return replace(problem, field=_FIELDS.get(field, problem.field))


def _share(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(Problem("wrong value", field=option, got=text, need="a share above 0, at most 1")) from None


def _prices(words: list[str]) -> dict[str, float]:
    """Read prices such as `h100=2.5` by cluster."""
    prices: dict[str, float] = {}
    problems = []
    for word in words:
        name, _, value = word.rpartition("=")
        try:
            prices[name] = float(value)
        except ValueError:
            name = ""
        if not name or not 0 <= prices[name] < float("inf"):
            problems.append(
                Problem("not of the form CLUSTER=PRICE", field="--price", got=repr(word), hint="--price h100=2.5")
            )
    if problems:
        raise InputError(problems)
    return prices
