"""`symconfig size`: how many GPUs of which cluster."""

from __future__ import annotations

import argparse
import re

from symconfig.cli.options import JOBS, adds, option, repeated, some
from symconfig.cli.shared import as_changes, show, whole, working
from symconfig.errors import FailedError, InputError, reworded

DOES = "how many GPUs of which cluster meet a deadline, at what cost"
EXAMPLES = ("symconfig size --model llama3.1-8b --tokens 100B --deadline 30d \\\n    --clusters h100,a100-80gb",)


add_options = adds(
    lambda: (
        "what is asked",
        *some("model"),
        option("--deadline", "T", "the time there is: 30d, 12h, 2w", required=True),
        option("--tokens", "N", "tokens to train on: 2T, 500B", required=True),
        option("--clusters", "A,B", "zoo names or paths (default: all of the zoo)", default="all"),
        option("--gpus-max", "N", "most GPUs (default 16384, or what the cluster has)", type=whole),
        option("--goodput", "X", "share of the time in which steps run (default 1)", type=_share, default=1.0),
        repeated("--price", "C=P", "price of a GPU-hour: h100=2.5; may be repeated", type=_price),
        "the job",
        *some("global_batch_size"),
        option("--batch-tokens", "N", "the same in tokens (default 4 Mi): 4M; rounded to an even number of sequences"),
        *some("seq_length", "backend", "megatron_version", "precision"),
        repeated("--pin", "NAME=VALUE", "as for plan: tp=8, pp=2..8; may be repeated"),
        *some("limits.memory_margin"),
        "",
        JOBS,
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Print the numbers of GPUs by cluster; return 0 if a cluster meets the deadline, else 1. Raises InputError with
    all problems, their fields named by the options.
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
    """Return (cluster, price) of `h100=2.5`, split at the last "=". Raises InputError unless 0 <= price < infinity."""
    name, _, value = text.rpartition("=")
    try:
        price = float(value)
    except ValueError:
        price = -1.0
    if not name or not 0 <= price < float("inf"):
        raise InputError("not of the form CLUSTER=PRICE", got=repr(text), hint="--price h100=2.5")
    return name, price
