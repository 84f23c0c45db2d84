"""`symconfig calibrate`: the constants of a GPU type, fitted to measured runs."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli.options import adds, flag, number, option, some
from symconfig.cli.shared import (
    YAML,
    cluster,
    file_of,
    output,
    show,
    working,
    write_text,
)
from symconfig.errors import InputError, Problem

if TYPE_CHECKING:
    from symconfig.measured.runs import Additions

DOES = "fit the constants of a GPU type to measured runs"
EXAMPLES = ("symconfig calibrate runs.yaml --cluster h100 --out mine.yaml",)


add_options = adds(
    lambda: (
        option(
            "files",
            "FILE",
            "measured runs (symconfig.measurements/1, .yaml), or folders of them, or logs of Megatron-LM or DeepSpeed",
            nargs="+",
        ),
        option("--cluster", "C", "zoo name, or path of a descriptor: only runs on its type of GPU"),
        flag("--from-scratch", "forget the cluster's kernel constants, and start from what is true of any GPU"),
        option("--assume", "FILE", "what rows leave out, by source (symconfig.assumptions/1): stands before ours"),
        option("--out", "PROFILE.yaml", "write the cluster with its fitted constants, for `plan --cluster`"),
        flag("--force", "replace PROFILE.yaml if it exists"),
        "what a log does not state (Megatron-LM's states all)",
        *some("model", "gpus", "global_batch_size", "seq_length"),
        option("--micro-batch-size", "N", "sequences of one GPU at a time", type=number),
        option("--recompute", "R", "none, selective or full"),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Print the fitted constants and write the profile with --out; return 0. Raises InputError."""
    from symconfig.measured.assumptions import assuming

    with assuming(file_of(arguments.assume)):
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    """Fit constants to the runs of the files, print them, and with --out write one profile; return 0. Raises InputError
    with all problems of options and files, and for --out if the runs are on several types of GPU.
    """
    from symconfig.descriptor.write import cluster_yaml
    from symconfig.measured.runs import calibrations, in_folder, runs
    from symconfig.report.calibration import blocks, to_dict

    problems = arguments.problems
    out = output(arguments, "out", YAML)
    only = problems.read(cluster, arguments.cluster)
    paths = [path for name in arguments.files for path in problems.collect(partial(in_folder, Path(name))) or ()]
    for path in paths:
        if not path.exists():
            problems.add(Problem("there is no such file", file=str(path)))
    additions = _additions(arguments)
    if problems.all:
        raise InputError(problems.all)
    with working() as progress:
        progress.say("predicting the measured runs")
        measured = problems.collect(lambda: runs(paths, only, additions))
        if problems.all or measured is None:
            raise InputError(problems.all)
        if out is not None and len(measured.timed) > 1:
            names = ", ".join(known.name for known, _ in measured.timed)
            what, hint = "the runs are on several types of GPU, and a profile is of one", measured.timed[0][0].name
            raise InputError(what, field="--out", got=names, hint=f"--cluster {hint}")
        rows = sum(len(timed) for _, timed in measured.timed)
        progress.say(f"fitting constants to {rows} run{'s' if rows > 1 else ''}")
        options = {"--cluster": arguments.cluster, "--assume": arguments.assume}
        words = [word for name, value in options.items() if value is not None for word in (name, Path(value).name)]
        words += ["--from-scratch"] if arguments.from_scratch else []
        # The command line that is recorded with the constants, with paths reduced to their names.
        command = " ".join(["symconfig calibrate", *(path.name for path in paths), *words])
        fitted = calibrations(measured, command, arguments.from_scratch)
    if out is not None:
        text = f"# {fitted[0].cluster.name} with constants fitted by: {command}\n{cluster_yaml(fitted[0].profile)}"
        write_text(out, text, arguments.force)
    show(arguments, lambda: to_dict(fitted, measured.remarks), lambda: blocks(fitted, measured.remarks))
    return 0


def _additions(arguments: argparse.Namespace) -> Additions:
    """Return the options that state what a log does not hold; None where not given. Wrong values and an unknown model
    are recorded in `arguments.problems`; wrong values stay in the result.
    """
    from symconfig.descriptor.load import load_model
    from symconfig.measured.runs import RECOMPUTE, Additions

    problems, names = arguments.problems, ("gpus", "micro_batch_size", "global_batch_size", "seq_length")
    given = {name: getattr(arguments, name) for name in names}
    for name, value in given.items():
        if isinstance(value, str) or (value is not None and value < 1):
            problems.add(Problem("wrong value", field=name, got=str(value), need="a whole number above 0"))
    if arguments.recompute not in (None, *RECOMPUTE):
        need = ", ".join(RECOMPUTE)
        problems.add(Problem("wrong value", field="--recompute", got=arguments.recompute, need=need))
    gpus, micro, batch, length = given.values()
    return Additions(problems.read(load_model, arguments.model), gpus, micro, batch, length, arguments.recompute)
