"""`symconfig measure`: one rank of a plan, or the kernels of a GPU, measured here."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli.main import print_json
from symconfig.cli.shared import check_yaml, named_cluster, note, say, timeout, write_text
from symconfig.errors import FailedError, InputError, Problem

if TYPE_CHECKING:
    from symconfig.measured.gpu.measure import Measurement
    from symconfig.measured.gpu.rank import Run
    from symconfig.plans.plan import Plan

OF_KERNELS = ("budget", "raw", "times")


def measure(arguments: argparse.Namespace) -> int:
    """`symconfig measure`: a folder's rank, or with --kernels the rates of this GPU."""
    if arguments.kernels:
        return _kernels(arguments)
    return _rank(arguments)


def _kernels(arguments: argparse.Namespace) -> int:
    from symconfig.cli.kernels import kernels

    return kernels(arguments)


def _rank(arguments: argparse.Namespace) -> int:
    """Exit 1: no GPU here (it says what would run), not enough memory, or Megatron failed."""
    from symconfig.measured.gpu.measure import measure as run_rank
    from symconfig.measured.gpu.measure import ready
    from symconfig.report.progress import Progress
    from symconfig.verify.megatron import not_rendered
    from symconfig.verify.megatron_arguments import FILE, read

    plan, run, timeout_s = _asked(arguments)
    folder, out = Path(arguments.folder), Path(arguments.out) if arguments.out is not None else None
    source = ready(plan, Path(arguments.megatron) if arguments.megatron else None)
    with Progress(sys.stderr) as progress:
        found = run_rank(folder, plan, run, source, progress.say, timeout_s)
    if found.taken.no_gpu is not None:
        return _no_gpu(found, arguments.json)
    if (failed := found.failed) is not None:
        changed = not_rendered(_folders(folder), read(folder))
        raise FailedError(
            Problem(". ".join(filter(None, (f"Megatron {source.version} {failed}", changed))), file=str(folder / FILE))
        )
    _show(found, arguments.json)
    if out is not None:
        _write(found, out, arguments.force)
    return 0 if found.fits else 1


def _folders(folder: Path) -> Plan:
    """The folder's plan, with the framework of its files."""
    from symconfig.plans.file import load_plan
    from symconfig.verify.checks import as_rendered

    return as_rendered(load_plan(folder), folder)


def _asked(arguments: argparse.Namespace) -> tuple[Plan, Run, float | None]:
    """The plan, the rank and the longest silence, or every option that is wrong."""
    from symconfig.api import planning as api
    from symconfig.measured.gpu.rank import STEPS, choose

    found = api.Problems()
    if arguments.folder is None:
        found.add(Problem("needs the folder of a plan", field="DIR", hint="symconfig plan ... --out DIR"))
    if arguments.out is not None:
        found.collect(lambda: check_yaml("--out", Path(arguments.out), arguments.force))
    device = arguments.device or "cuda"
    if arguments.out is not None and device == "cpu":
        found.add(Problem("the seconds of a CPU are no measurement of a plan's GPU", field="--out", hint="--json"))
    cluster = found.collect(lambda: named_cluster(arguments.cluster)) if arguments.cluster is not None else None
    for name in OF_KERNELS:
        if getattr(arguments, name) is not None:
            found.add(
                Problem(
                    "says something of kernels, and of a rank it says nothing",
                    field=f"--{name}",
                    hint="--kernels, without DIR",
                )
            )
    timeout_s = found.collect(lambda: timeout(arguments.timeout))
    loaded = found.collect(lambda: _folders(Path(arguments.folder))) if arguments.folder is not None else None
    if loaded is None:
        raise InputError(found.all)
    plan = replace(loaded, cluster=cluster) if cluster is not None else loaded
    run = found.collect(
        lambda: choose(plan, arguments.rank or "0", arguments.steps or str(STEPS), arguments.transformer_impl, device)
    )
    if found.all or run is None:
        raise InputError(found.all)
    return plan, run, timeout_s


def _no_gpu(found: Measurement, as_json: bool) -> int:
    from symconfig.report.measure import to_dict, would_run

    if as_json:
        print_json(to_dict(found))
    else:
        say(would_run(found))
    note(
        f"error: nothing is measured: {found.taken.no_gpu}. Try: a machine with a GPU, or --device cpu, which runs a "
        "small plan to show that it runs."
    )
    return FailedError.exit_code


def _show(found: Measurement, as_json: bool) -> None:
    from symconfig.report.measure import blocks, to_dict

    if as_json:
        print_json(to_dict(found))
    else:
        say(blocks(found))


def _write(found: Measurement, out: Path, force: bool) -> None:
    from symconfig.descriptor.write import measurements_yaml
    from symconfig.measured.gpu.rows import document

    write_text(out, measurements_yaml(document(found)), force)
    note(f"wrote {out}")
