"""`symconfig adaptability`: what a strategy is worth when the job changes."""

from __future__ import annotations

import argparse
from functools import partial

from symconfig.cli.options import add_job, add_page
from symconfig.cli.shared import PAGE, output, show, working, write_report
from symconfig.errors import InputError, reworded

NAME = "adaptability"
DOES = "what a plan loses that is kept when the job changes"
EXAMPLES = (
    "symconfig adaptability --model llama2-13b --cluster h100 --gpus 64 \\\n"
    "    --global-batch-size 256 --change seq_length=16384 --change experts=8",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("job", nargs="?", metavar="JOB.yaml", help="the job as a file; options below override what it says")
    add(
        "--change",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        required=True,
        help="a field of the job or of the model, model=NAME, cluster=NAME or experts=N; commas join what changes at "
        "once; may be repeated",
    )
    add_job(parser)
    add_page(parser)
    add("--force", action="store_true", help="replace a page that exists")


def run(arguments: argparse.Namespace) -> int:
    """Exit 0 where every changed job has a plan, 1 where one has none."""
    from symconfig.api.adaptability import adaptability
    from symconfig.api.planning import Problems
    from symconfig.cli.job import as_options, request
    from symconfig.report.adaptability import blocks, to_dict
    from symconfig.report.page.pictures import of_changes
    from symconfig.runs.adaptability import parsed

    gathered = Problems()
    html = output(gathered, "--html", arguments.html, arguments.force, PAGE)
    changes = gathered.collect(lambda: parsed(arguments.change))
    job = gathered.collect(lambda: request(arguments))
    if job is None or changes is None or gathered.all:
        raise InputError(gathered.all)
    with reworded(partial(as_options, request=job)), working() as progress:
        cases = adaptability(job.document, changes, problems=job.problems, progress=progress)
    shown = blocks(cases)
    show(arguments, lambda: to_dict(cases), lambda: shown)
    write_report(html, "When the job changes", shown, [of_changes(cases)], force=arguments.force)
    return 0 if all(case.replanned.plan is not None for case in cases) else 1
