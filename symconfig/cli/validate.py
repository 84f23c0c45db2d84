"""`symconfig validate`: predictions against measured runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from symconfig.cli.options import add_page
from symconfig.cli.shared import note, page_path, print_json, say, write_page
from symconfig.errors import InputError, Problem

NAME = "validate"
DOES = "predictions against measured runs"
EXAMPLES = ("symconfig validate runs.yaml",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `symconfig validate`."""
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="measured runs (symconfig.measurements/1), or folders of such files")
    add("--plot", metavar="FILE.png", help="draw predicted against measured seconds (png, svg or pdf)")
    add_page(parser)
    add("--assume", metavar="FILE", help="what rows leave out, by source (symconfig.assumptions/1): stands before ours")
    add("--explain", metavar="ID", help="one row only: what it states, what was assumed, and where the error may be")


def run(arguments: argparse.Namespace) -> int:
    """Exit 1 when no row could be predicted."""
    from symconfig.measured.assumptions import assuming

    with assuming(Path(arguments.assume) if arguments.assume is not None else None):
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    from symconfig.api.planning import Problems
    from symconfig.measured.breakdown import breakdown
    from symconfig.measured.read import read
    from symconfig.measured.score import source
    from symconfig.report import validation, validation_plot, validation_row
    from symconfig.report.progress import Progress

    problems = Problems()
    picture = Path(arguments.plot) if arguments.plot is not None else None
    if picture is not None and arguments.explain is not None:
        problems.add(Problem("explains one row, of which there is no picture", field="--explain"))
    elif picture is not None:
        problems.collect(lambda: validation_plot.check(picture))
    html = page_path(arguments.html, True, problems)
    files = problems.collect(lambda: read(arguments.files))
    if problems.all or files is None:
        raise InputError(problems.all)
    if arguments.explain is not None:
        row = breakdown(files, arguments.explain)
        if arguments.json:
            print_json(validation_row.to_dict(row))
        else:
            say(validation_row.blocks(row))
        return 0
    scores = []
    with Progress(sys.stderr) as progress:
        for name, content in files:
            progress.say(f"predicting {len(content.rows)} runs of {name}")
            scores.append(source(name, content))
    if arguments.json:
        print_json(validation.to_dict(scores))
    else:
        say(validation.blocks(scores))
    if html is not None:
        from symconfig.api.page import report_page
        from symconfig.report.page.pictures import of_scores

        write_page(
            html,
            report_page("Predictions against measured runs", validation.blocks(scores), [of_scores(scores)]),
            force=True,
        )
    if picture is not None:
        validation_plot.plot(scores, picture)
        note(f"wrote {picture}")
    return 0 if any(item.rows for item in scores) else 1
