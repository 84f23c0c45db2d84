"""`symconfig size`: how many GPUs of which cluster."""

from __future__ import annotations

import argparse
import re

from symconfig.cli.options import MODEL, add_jobs, add_some
from symconfig.cli.shared import as_changes, show, whole, working
from symconfig.errors import FailedError, InputError, reworded

NAME = "size"
DOES = "how many GPUs of which cluster meet a deadline, at what cost"
EXAMPLES = ("symconfig size llama3.1-8b --tokens 100B --deadline 30d \\\n    --clusters h100,a100-80gb",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    group = parser.add_argument_group("what is asked")
    add = group.add_argument
    add("--deadline", metavar="T", required=True, help="the time there is: 30d, 12h, 2w")
    add("--tokens", metavar="N", required=True, help="tokens to train on: 2T, 500B")
    add("--clusters", metavar="A,B", default="all", help="zoo names or paths (default: all of the zoo)")
    add("--gpus-max", metavar="N", type=whole, help="most GPUs (default 16384, or what the cluster has)")
    add("--goodput", metavar="X", type=_share, default=1.0, help="share of the time in which steps run (default 1)")
    add(
        "--price",
        metavar="C=P",
        type=_price,
        action="append",
        default=[],
        help="price of a GPU-hour: h100=2.5; may be repeated",
    )
    job = parser.add_argument_group("the job")
    add = job.add_argument
    add("--global-batch-size", metavar="G", help="sequences per optimizer step (default: 4 Mi tokens)")
    add("--batch-tokens", metavar="N", help="the same in tokens: 4M; rounded to an even number of sequences")
    add_some(job, "seq_length", "backend", "megatron_version", "precision")
    add("--pin", metavar="NAME=VALUE", action="append", default=[], help="as for plan: tp=8, pp=2..8; may be repeated")
    add_some(job, "limits.memory_margin")
    add_jobs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the numbers of GPUs; return 0 if a cluster meets the deadline, else 1. Raises InputError with all
    problems, named by the options.
    """
    from symconfig.api.sweep import ALL, size
    from symconfig.cli.job import as_options, request
    from symconfig.report.size import blocks, to_dict
    from symconfig.runs.sweep.size import MOST_GPUS

    job = request(arguments)
    clusters = ALL if arguments.clusters == ALL else _BETWEEN.split(arguments.clusters)
    with reworded(lambda problem: as_changes(as_options(problem, job), (), "--clusters")), working() as progress:
        answer = size(
            **{"model": None, **job.document.data},
            deadline=arguments.deadline,
            tokens=arguments.tokens,
            clusters=clusters,
            batch_tokens=arguments.batch_tokens,
            gpus_max=arguments.gpus_max or MOST_GPUS,
            goodput=1.0 if arguments.goodput is None else arguments.goodput,
            prices=dict(filter(None, arguments.price)),
            jobs=arguments.jobs,
            problems=(*arguments.problems.all, *job.problems),
            progress=lambda done, total: progress.say(f"planned {done:,} of {total:,}"),
        )
    show(arguments, lambda: to_dict(answer), lambda: blocks(answer))
    return 0 if answer.met else FailedError.exit_code


# A comma between clusters; one in a cluster's name is followed by a blank, or by a field that is changed.
_BETWEEN = re.compile(r",(?!\s|[A-Za-z_.]+=)")


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError("wrong value", got=text, need="a share above 0, at most 1") from None


def _price(text: str) -> tuple[str, float]:
    """Return (cluster, price) of a text such as `h100=2.5`. Raises InputError."""
    name, _, value = text.rpartition("=")
    try:
        price = float(value)
    except ValueError:
        price = -1.0
    if not name or not 0 <= price < float("inf"):
        raise InputError("not of the form CLUSTER=PRICE", got=repr(text), hint="--price h100=2.5")
    return name, price
