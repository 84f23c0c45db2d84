"""`symconfig estimate`: what one layout takes of memory and time, also where it does not fit."""

from __future__ import annotations

import argparse
from functools import partial

from symconfig.cli.audit import supplied
from symconfig.cli.options import JOB_FILE, adds, flag, job, job_options, number, option, script
from symconfig.cli.shared import cluster, refuse, show
from symconfig.errors import InputError, reworded

DOES = "what a given layout, or a script, takes of memory and time, also where it does not fit"
EXAMPLES = (
    "symconfig estimate --model llama3.1-8b --cluster h100 --gpus 64 \\\n    --pin tp=2 --pin pp=2 --fits-on",
    "symconfig estimate --script train.sh --cluster h100",
)
# Options of a job that say what a script does not.
_OF_SCRIPT = ("model", "cluster", "gpus", "seq_length", "megatron_version", "limits.memory_margin", "target")


add_options = adds(
    lambda: (
        JOB_FILE,
        option("--script", "FILE", "price what this script or config starts, as `audit` reads it"),
        flag("--fits-on", "also which GPUs of `symconfig list clusters` have room, and the step"),
        *job(),
        script()[0],
        script()[-1],
        option("--vocab-size", "V", "tokens of the vocabulary, if the script does not state it", type=number),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Print the estimate of a job's, or with --script a script's, layout, and with --fits-on of the same on the zoo's
    clusters; return 1 if it does not fit or the framework refuses it, else 0. Raises InputError, also for a job's
    options with --script, and for a script's without.
    """
    from symconfig.api.estimate import of_all, of_job, of_script
    from symconfig.cli.job import as_options, request

    if arguments.script is None:
        refuse(arguments, ("root", "vocab_size"), "is of a script", need="--script FILE")
        job = request(arguments)
        price = partial(
            of_job,
            job.document,
            model_base=job.model_base,
            cluster_base=job.cluster_base,
            problems=(*arguments.problems.all, *job.problems),
        )
        named = job.document.data.get("cluster")
        with reworded(partial(as_options, request=job)):
            result = of_all(price, named, fits_on=arguments.fits_on)
    else:
        others = [one.dest for name, one in job_options().items() if name not in _OF_SCRIPT]
        refuse(arguments, ("job", "pin", *others), "is for a layout by its pins, and a script states its own")
        given = supplied(arguments, arguments.problems)
        on_cluster = arguments.problems.read(cluster, arguments.cluster)
        if arguments.problems.all:
            raise InputError(arguments.problems.all)
        result = of_all(lambda on: of_script(arguments.script, on, given), on_cluster, fits_on=arguments.fits_on)
    show(arguments, result.to_dict, result.blocks)
    return 0 if result.runs else 1
