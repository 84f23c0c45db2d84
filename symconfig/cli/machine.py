"""Commands on machines: `doctor`, `measure` and `calibrate` a GPU's constants, `completion` for shells."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig.cli.options import ASSUME, Command, flag, option, some
from symconfig.cli.shared import (
    YAML,
    file_of,
    output,
    print_json,
    refuse,
    show,
    whole,
    within,
    working,
    write_data,
    write_text,
)
from symconfig.errors import FailedError, InputError, Problem
from symconfig.resources import missing

if TYPE_CHECKING:
    from symconfig.descriptor.cluster import ClusterDescriptor


def run_doctor(arguments: argparse.Namespace) -> int:
    """Print what is installed and, if planning's packages are, what options need; return 1 if planning cannot work."""
    from symconfig.report.doctor import BASE, blocks, examine, sites

    health = examine()
    health["sites"] = list(sites()) if all(health["packages"][name] for name in BASE) else []
    show(arguments, lambda: health, lambda: blocks(health))
    return 0 if health["healthy"] else 1


DEFAULT_BUDGET_S = 60.0


_OF_MEASURING = ("budget", "device")


def run_measure(arguments: argparse.Namespace) -> int:
    """Measure a GPU's (or CPU's) kernels, or with --times read their times; print rates and fitted constants, write the
    files asked for; return 0. Constants are fitted unless it is a CPU without --cluster. Raises InputError with all
    problems of options before anything is measured, and for a GPU that neither --cluster nor the zoo knows.
    """
    from symconfig.descriptor.load import load_cluster
    from symconfig.descriptor.write import kernels_yaml
    from symconfig.measured.gpu.kernel_fit import as_yaml, fit_kernels, read
    from symconfig.measured.gpu.kernels import choose_device, import_torch, measure_kernels, zoo_name
    from symconfig.report.calibration import kernel_blocks, kernel_data

    problems = arguments.problems
    out, raw = output(arguments, "out", YAML), output(arguments, "raw", YAML)
    if arguments.times is not None:
        refuse(arguments, _OF_MEASURING, "is for measuring, and --times reads measured times")
        if not Path(arguments.times).is_file():
            problems.add(missing(arguments.times))
    known = problems.read(load_cluster, arguments.cluster)
    times = None if problems.all else problems.read(read, file_of(arguments.times))
    problems.check()
    if times is not None:
        known = known or _cluster(times.cluster, times.rig.product, out)
    else:
        torch: Any = import_torch()
        device = choose_device(torch, arguments.device)
        product = torch.cuda.get_device_name() if device == "cuda" else None
        known = known or _cluster(zoo_name(product) if product else None, product, out)
        with working() as progress:
            times = measure_kernels(torch, device, arguments.budget or DEFAULT_BUDGET_S, progress)
    fit = fit_kernels(times, known) if known is not None else None
    texts = {raw: as_yaml(times)}
    if fit is not None:
        head = f"# Constants of {fit.cluster.name}'s GPU, fitted to {len(fit.rows)} kernels measured on {times.rig}.\n"
        use = "# A cluster descriptor uses them with `kernels: ./` and this file's name, relative to its own folder.\n"
        texts[out] = head + use + kernels_yaml(fit.kernels)
    for path, text in texts.items():
        if path is not None:
            write_text(path, text, arguments.force)
    show(arguments, lambda: kernel_data(times, fit), lambda: kernel_blocks(times, fit))
    return 0


def _cluster(name: str | None, product: str | None, out: Path | None) -> ClusterDescriptor | None:
    """Return the zoo's cluster called `name`; if there is none: None for a CPU (or unknown product) if no profile is to
    be written (`out`). Raises InputError for a GPU without a cluster, and for a CPU with `out`. product: this machine's
    GPU or CPU; no cluster is looked up by it.
    """
    from symconfig.descriptor.load import load_cluster, zoo_clusters

    if name in zoo_clusters():
        return load_cluster(name)
    if product is not None and not product.startswith("CPU"):
        what = "no cluster of the zoo has this GPU, and constants are shares of its peaks"
        need = "a descriptor with them (docs/reference/cluster-files.md)"
        raise InputError(what, field="--cluster", got=product, need=need)
    if out is not None:
        what = "constants are shares of a GPU's peaks, and a CPU has none"
        raise InputError(what, field="--out", hint="--cluster C, whose peaks it is compared with")
    return None


def run_calibrate(arguments: argparse.Namespace) -> int:
    """Fit constants to the runs of the files, print them, and with --out write one profile; return 0. Raises InputError
    with all problems of options and files, and for --out if the runs are on several types of GPU.
    """
    from symconfig.descriptor.load import load_cluster, load_model
    from symconfig.descriptor.write import cluster_yaml
    from symconfig.measured.assumptions import assuming
    from symconfig.measured.log_row import Additions
    from symconfig.measured.runs import calibrations, in_folder, runs
    from symconfig.report.calibration import calibration_blocks, calibration_data
    from symconfig.solve.pins import RECOMPUTE

    with assuming(file_of(arguments.assume)):
        problems = arguments.problems
        out = output(arguments, "out", YAML)
        only = problems.read(load_cluster, arguments.cluster)
        paths = [path for name in arguments.files for path in problems.collect(partial(in_folder, Path(name))) or ()]
        for path in paths:
            if not path.exists():
                problems.add(missing(path))
        if arguments.recompute not in (None, *RECOMPUTE):
            need = ", ".join(RECOMPUTE)
            problems.add(Problem("wrong value", field="--recompute", got=arguments.recompute, need=need))
        a = arguments
        model = problems.read(load_model, a.model)
        additions = Additions(model, a.gpus, a.micro_batch_size, a.global_batch_size, a.seq_length, a.recompute)
        problems.check()
        with working() as progress:
            progress.say("predicting the measured runs")
            measured = problems.need(problems.collect(lambda: runs(paths, only, additions)))
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
        show(
            arguments,
            lambda: calibration_data(fitted, measured.remarks),
            lambda: calibration_blocks(fitted, measured.remarks),
        )
        return 0


SHELLS = ("bash", "zsh", "fish")

INSTALL = "pip install 'shtab>=1.13,<2'"

_FILE = re.compile(r"FILE|PATH|DATA|.*\.[a-z]+$|.*FILE\|")  # metavars of what lies on a disk
# How a shell offers words, and files beside them: a function of its own, or code.
_WORDS: Mapping[str, str] = {
    "bash": '_symconfig_{kind}() {{ compgen -W \'{words}\' -- "$1"; compgen -f -- "$1"; }}\n',
    "zsh": "_symconfig_{kind}() {{ compadd -- {words}; _files }}\n",
    "fish": "(printf '%s\\n' {words}; __fish_complete_path (commandline -ct))",
}


def run_completion(arguments: argparse.Namespace) -> int:
    """Print the completion script; return 0. Raises FailedError if shtab is not installed."""
    text = script(arguments.shell)
    if arguments.json:
        print_json({"schema": "symconfig.completion/1", "shell": arguments.shell, "script": text})
    else:
        write_data(text)
    return 0


def script(shell: str) -> str:
    """Return the script that completes commands, options, files and names of models, clusters, targets and launchers in
    a shell. Raises FailedError if shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise FailedError("completion needs shtab, which is not installed", hint=INSTALL) from None
    from symconfig.cli.main import parser_of
    from symconfig.descriptor.load import zoo_clusters, zoo_models
    from symconfig.render import every_launcher, targets

    names = {"model": zoo_models(), "cluster": zoo_clusters(), "target": [*targets()], "launcher": [*every_launcher()]}
    names["listed"] = [*names["model"], *names["cluster"]]
    parser = parser_of([])
    (commands,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    every = [(name, action) for name, command in commands.choices.items() for action in command._actions]
    for command, action in every:
        kind = "listed" if (command, action.dest) == ("list", "name") else action.dest
        places = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE
        if kind in names:
            code = _WORDS["fish"].format(words=" ".join(names[kind])) if shell == "fish" else f"_symconfig_{kind}"
            action.complete = {**places, shell: code}
        elif isinstance(action.metavar, str) and (action.metavar == "DIR" or _FILE.match(action.metavar)):
            action.complete = places
    functions = "".join(_WORDS[shell].format(kind=kind, words=" ".join(words)) for kind, words in names.items())
    preamble = {name: "" if name == "fish" else functions for name in shtab.SUPPORTED_SHELLS}
    text: str = shtab.complete(parser, shell, preamble=preamble)
    return text if text.endswith("\n") else f"{text}\n"


COMMANDS = (
    Command(
        name="doctor",
        does="show versions, data folders, and what the options of plans need on this machine",
        examples=("symconfig doctor",),
        rows=tuple,
        run=run_doctor,
    ),
    Command(
        name="measure",
        does="time this GPU's kernels and fit the constants of a cluster's profile",
        examples=("symconfig measure --out kernels.yaml",),
        rows=lambda: (
            option("--out", "FILE.yaml", "write the cluster profile there"),
            flag("--force", "replace FILE.yaml if it exists"),
            option("--device", "D", "cuda or cpu (default: cuda); cpu shows how it goes in seconds"),
            option("--cluster", "C", "zoo name, or path of a descriptor, with this GPU (default: by the GPU's name)"),
            option(
                "--budget",
                "S",
                "seconds to measure for (default 60)",
                type=within(float, 1, 3600, "seconds from 1 to 3600"),
            ),
            option("--raw", "FILE.yaml", "write each kernel's time there (symconfig.kernel_times/1)"),
            option("--times", "FILE.yaml", "fit to such a file's times instead of measuring"),
        ),
        run=run_measure,
    ),
    Command(
        name="calibrate",
        does="fit the constants of a GPU type to measured runs",
        examples=("symconfig calibrate runs.yaml --cluster h100 --out mine.yaml",),
        rows=lambda: (
            option(
                "files",
                "FILE",
                "measured runs (symconfig.measurements/1, .yaml), folders of them, or logs of Megatron-LM or DeepSpeed",
                nargs="+",
            ),
            option("--cluster", "C", "zoo name, or path of a descriptor: only runs on its type of GPU"),
            flag("--from-scratch", "forget the cluster's kernel constants, and start from what is true of any GPU"),
            ASSUME,
            option("--out", "PROFILE.yaml", "write the cluster with its fitted constants, for `plan --cluster`"),
            flag("--force", "replace PROFILE.yaml if it exists"),
            "what a log does not state (Megatron-LM's states all)",
            *some("model"),
            option("--gpus", "N", "GPUs of the run", type=whole),
            option("--micro-batch-size", "N", "sequences of one GPU at a time", type=whole),
            option("--global-batch-size", "N", "sequences of a step", type=whole),
            option("--seq-length", "N", "tokens of a sequence", type=whole),
            option("--recompute", "R", "none, selective or full"),
        ),
        run=run_calibrate,
    ),
    Command(
        name="completion",
        does="print a script with which bash, zsh or fish complete commands, options, files and names of the zoo",
        examples=("symconfig completion bash", "symconfig completion fish"),
        rows=lambda: (
            option("shell", None, "the shell; where its script goes: docs/how-to/install.md", choices=SHELLS),
        ),
        run=run_completion,
    ),
)
