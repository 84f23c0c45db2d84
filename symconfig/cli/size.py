"""`symconfig size`: how many GPUs of which cluster."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli.main import print_json
from symconfig.cli.shared import note, say, whole
from symconfig.errors import FailedError, InputError, Problem

if TYPE_CHECKING:
    from symconfig.api.planning import Problems
    from symconfig.runs.sweep.size import Question


def size(arguments: argparse.Namespace) -> int:
    """Exit 1: no cluster is in time."""
    from symconfig.api.planning import Problems
    from symconfig.cli import sweep as cli_sweep
    from symconfig.report import size_plot
    from symconfig.report.progress import Progress
    from symconfig.report.size import blocks, to_dict
    from symconfig.runs.sweep.size import size as run

    found = Problems()
    picture = Path(arguments.plot) if arguments.plot is not None else None
    if picture is not None:
        found.collect(lambda: size_plot.check(picture))
    wanted = cli_sweep.engine(arguments, found)
    question = _question(arguments, found)
    with Progress(sys.stderr) as progress:
        answer = run(question, wanted, lambda done, asked_for: progress.say(f"planned {done:,} of {asked_for:,}"))
    if arguments.json:
        print_json(to_dict(answer))
    else:
        say(blocks(answer))
    if picture is not None:
        size_plot.plot(answer, picture)
        note(f"wrote {picture}")
    return 0 if answer.met else FailedError.exit_code


def _question(arguments: argparse.Namespace, found: Problems) -> Question:
    """What is asked. Raises InputError with this and all that was found wrong before, in the words of the options."""
    from symconfig.api import sweep as api_sweep
    from symconfig.cli.job import OPTIONS, as_options, request
    from symconfig.runs.sweep.size import MOST_GPUS

    for name in ("job", *(option[2:].replace("-", "_") for option in OPTIONS)):  # those of `plan` that `size` has not
        arguments.__dict__.setdefault(name, None)
    most = found.collect(lambda: whole("--gpus-max", arguments.gpus_max)) or MOST_GPUS
    goodput = found.collect(lambda: _share("--goodput", arguments.goodput))
    prices = found.collect(lambda: _prices(arguments.price))
    asked = request(arguments)
    clusters = arguments.clusters if arguments.clusters == api_sweep.ALL else arguments.clusters.split(",")
    try:
        return api_sweep.read_size(
            asked.document.data,
            arguments.deadline,
            arguments.tokens,
            clusters,
            arguments.batch_tokens,
            most,
            1.0 if goodput is None else goodput,
            prices or {},
            (*found.all, *asked.problems),
        )
    except InputError as error:
        raise InputError([_as_option(as_options(problem, asked)) for problem in error.problems]) from None


_FIELDS = {
    "deadline": "--deadline",
    "tokens": "--tokens",
    "batch_tokens": "--batch-tokens",
    "goodput": "--goodput",
    "most_gpus": "--gpus-max",
}


def _as_option(problem: Problem) -> Problem:
    field = problem.field or ""
    if field.startswith("sweep.cluster"):
        return replace(problem, field="--clusters")
    if field.startswith("prices."):
        return replace(problem, field="--price", got=problem.got or field.removeprefix("prices."))
    return replace(problem, field=_FIELDS.get(field, problem.field))


def _share(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(Problem("wrong value", field=option, got=text, need="a share above 0, at most 1")) from None


def _prices(words: list[str]) -> dict[str, float]:
    """`h100=2.5` by cluster."""
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
