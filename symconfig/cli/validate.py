"""`symconfig validate`: predictions against measured runs."""

from __future__ import annotations

import argparse

from symconfig.cli.options import add_page
from symconfig.cli.shared import PAGE, file_of, output, show, working, write_report
from symconfig.errors import InputError

NAME = "validate"
DOES = "predictions against measured runs"
EXAMPLES = ("symconfig validate runs.yaml",)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="measured runs (symconfig.measurements/1), or folders of such files")
    add_page(parser)
    add("--assume", metavar="FILE", help="what rows leave out, by source (symconfig.assumptions/1): stands before ours")
    add("--explain", metavar="ID", help="one row only: what it states, what was assumed, and where the error may be")


def run(arguments: argparse.Namespace) -> int:
    """Exit 1 when no row could be predicted."""
    from symconfig.measured.assumptions import assuming

    with assuming(file_of(arguments.assume)):
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    from symconfig.api.planning import Problems
    from symconfig.measured.breakdown import breakdown
    from symconfig.measured.read import read
    from symconfig.measured.score import source
    from symconfig.report import validation, validation_row
    from symconfig.report.page.pictures import of_scores

    problems = Problems()
    html = output(problems, "--html", arguments.html, True, PAGE)
    files = problems.collect(lambda: read(arguments.files))
    if problems.all or files is None:
        raise InputError(problems.all)
    if arguments.explain is not None:
        row = breakdown(files, arguments.explain)
        show(arguments, lambda: validation_row.to_dict(row), lambda: validation_row.blocks(row))
        return 0
    scores = []
    with working() as progress:
        for name, content in files:
            progress.say(f"predicting {len(content.rows)} runs of {name}")
            scores.append(source(name, content))
    shown = validation.blocks(scores)
    show(arguments, lambda: validation.to_dict(scores), lambda: shown)
    write_report(html, "Predictions against measured runs", shown, [of_scores(scores)])
    return 0 if any(item.rows for item in scores) else 1
