"""`symconfig measure`: one rank of a plan, the kernels of a GPU, or an engine's steps, measured here."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli.shared import (
    YAML,
    file_of,
    named_cluster,
    note,
    output,
    refuse,
    show,
    timeout,
    working,
    write_text,
)
from symconfig.errors import FailedError, InputError, Problem

if TYPE_CHECKING:
    from symconfig.measured.gpu.rank import Run
    from symconfig.plans.plan import Plan

NAME = "measure"
DOES = "run one rank of a plan, or a GPU's kernels, on one GPU and time it"
EXAMPLES = ("symconfig measure out --out runs.yaml",)

OF_KERNELS = ("budget", "raw", "times", "layers")


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", nargs="?", metavar="DIR", help="what `plan --out` wrote for Megatron-LM")
    add("--out", metavar="FILE.yaml", help="write the measurements there (with --kernels: the cluster profile)")
    add("--force", action="store_true", help="replace FILE.yaml if it exists")
    add("--device", metavar="D", help="cuda or cpu (default: cuda); on cpu nothing is said of memory")
    add(
        "--cluster",
        metavar="C",
        help="zoo name, or path of a descriptor, with this GPU (default: DIR's; with --kernels by the GPU's name)",
    )
    rank = parser.add_argument_group("a rank of DIR's plan: the real module, with a network that only pretends")
    rank.add_argument("--rank", metavar="R", help="default: 0; heaviest: a rank of the stage that needs most memory")
    rank.add_argument("--steps", metavar="N", help="optimizer steps, of which the first is a warm-up (default 3)")
    rank.add_argument(
        "--transformer-impl",
        metavar="T",
        help="transformer_engine or local (default: the former where it is installed)",
    )
    rank.add_argument("--megatron", metavar="PATH", help="a Megatron-LM checkout, instead of the fetched source")
    rank.add_argument("--timeout", metavar="S", help="seconds that a step may take (default 600, on cpu 120)")
    kernels = parser.add_argument_group("the GPU's kernels")
    kernels.add_argument(
        "--kernels",
        action="store_true",
        help="measure the rates of this GPU's kernels as constants of a cluster's profile; no DIR",
    )
    kernels.add_argument(
        "--generation",
        action="append",
        metavar="MODEL",
        help="time decoding and prompts of a model as an inference engine runs them, against the model of RL plans; "
        "again for more models; no DIR",
    )
    kernels.add_argument("--layers", metavar="N", help="with --generation: the first N layers of each model alone")
    kernels.add_argument("--budget", metavar="S", help="seconds to measure for (default 60)")
    kernels.add_argument("--raw", metavar="FILE.yaml", help="write each kernel's time there (symconfig.kernel_times/1)")
    kernels.add_argument("--times", metavar="FILE.yaml", help="fit to such a file's times instead of measuring")


def run(arguments: argparse.Namespace) -> int:
    """Measure a folder's rank, with --kernels the rates of this GPU, or with --generation an engine's steps. Exit 1 as
    `_rank` says."""
    from symconfig.cli.measure_generation import run as generation
    from symconfig.cli.measure_kernels import run as kernels

    if arguments.generation:
        return generation(arguments)
    return kernels(arguments) if arguments.kernels else _rank(arguments)


def _rank(arguments: argparse.Namespace) -> int:
    """Exit 1: no GPU here (it says what would run), not enough memory, or Megatron failed."""
    from symconfig.descriptor.write import measurements_yaml
    from symconfig.measured.gpu.measure import measure as run_rank
    from symconfig.measured.gpu.measure import ready
    from symconfig.measured.gpu.rows import document
    from symconfig.report.measure import blocks, to_dict, would_run
    from symconfig.verify.megatron import not_rendered
    from symconfig.verify.megatron_arguments import FILE, read

    plan, run, timeout_s = _choices(arguments)
    folder, out = Path(arguments.folder), file_of(arguments.out)
    source = ready(plan, file_of(arguments.megatron or None))
    with working() as progress:
        measurement = run_rank(folder, plan, run, source, progress.say, timeout_s)
    if measurement.taken.no_gpu is not None:
        show(arguments, lambda: to_dict(measurement), lambda: would_run(measurement))
        note(
            f"error: nothing is measured: {measurement.taken.no_gpu}. Try: a machine with a GPU, or --device cpu, "
            "which runs a small plan to show that it runs."
        )
        return FailedError.exit_code
    if (failed := measurement.failed) is not None:
        changed = not_rendered(_folders(folder), read(folder))
        what = ". ".join(filter(None, (f"Megatron {source.version} {failed}", changed)))
        raise FailedError(what, file=str(folder / FILE))
    show(arguments, lambda: to_dict(measurement), lambda: blocks(measurement))
    if out is not None:
        write_text(out, measurements_yaml(document(measurement)), arguments.force)
        note(f"wrote {out}")
    return 0 if measurement.fits else 1


def _folders(folder: Path) -> Plan:
    """Read the folder's plan, with the framework of its files."""
    from symconfig.plans.file import load_plan
    from symconfig.verify.checks import as_rendered

    return as_rendered(load_plan(folder), folder)


def _choices(arguments: argparse.Namespace) -> tuple[Plan, Run, float | None]:
    """Return the plan, the rank and the longest silence, or raise every option that is wrong."""
    from symconfig.api import planning as api
    from symconfig.measured.gpu.rank import STEPS, choose

    problems = api.Problems()
    if arguments.folder is None:
        problems.add(Problem("needs the folder of a plan", field="DIR", hint="symconfig plan ... --out DIR"))
    output(problems, "--out", arguments.out, arguments.force, YAML)
    device = arguments.device or "cuda"
    if arguments.out is not None and device == "cpu":
        problems.add(Problem("the seconds of a CPU are no measurement of a plan's GPU", field="--out", hint="--json"))
    cluster = problems.read(named_cluster, arguments.cluster)
    what = "says something of kernels, and of a rank it says nothing"
    refuse(problems, arguments, OF_KERNELS, what, hint="--kernels, without DIR")
    timeout_s = problems.collect(lambda: timeout(arguments.timeout))
    loaded = problems.read(_folders, file_of(arguments.folder))
    if loaded is None:
        raise InputError(problems.all)
    plan = replace(loaded, cluster=cluster) if cluster is not None else loaded
    run = problems.collect(
        lambda: choose(plan, arguments.rank or "0", arguments.steps or str(STEPS), arguments.transformer_impl, device)
    )
    if problems.all or run is None:
        raise InputError(problems.all)
    return plan, run, timeout_s
