"""`symconfig validate`: predictions against measured runs."""

from __future__ import annotations

import argparse

from symconfig.cli.options import adds, option
from symconfig.cli.shared import file_of, show, working

DOES = "predictions against measured runs"
EXAMPLES = ("symconfig validate runs.yaml",)


add_options = adds(
    lambda: (
        option("files", "FILE", "measured runs (symconfig.measurements/1), or folders of such files", nargs="+"),
        option("--assume", "FILE", "what rows leave out, by source (symconfig.assumptions/1): stands before ours"),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Print predictions against measured runs, with --assume's assumptions first; return 1 if no row could be
    predicted, else 0. Raises InputError for files that cannot be read.
    """
    from symconfig.measured.assumptions import assuming
    from symconfig.measured.runs import read
    from symconfig.measured.score import source
    from symconfig.report import validation

    scores = []
    with assuming(file_of(arguments.assume)), working() as progress:
        for name, content in read(arguments.files):
            progress.say(f"predicting {len(content.rows)} runs of {name}")
            scores.append(source(name, content))
    show(arguments, lambda: validation.to_dict(scores), lambda: validation.blocks(scores))
    return 0 if any(item.rows for item in scores) else 1
