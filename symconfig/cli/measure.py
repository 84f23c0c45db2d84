"""`symconfig measure`: the rates of the GPU at hand, and a profile from them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig.cli.shared import (
    YAML,
    cluster,
    file_of,
    note,
    output,
    refuse,
    seconds,
    show,
    working,
    write_text,
)
from symconfig.errors import InputError

if TYPE_CHECKING:
    from symconfig.descriptor.cluster import ClusterDescriptor
    from symconfig.measured.gpu.kernel_times import KernelTimes

NAME = "measure"
DOES = "time this GPU's kernels and fit the constants of a cluster's profile"
EXAMPLES = ("symconfig measure --out kernels.yaml",)

DEFAULT_BUDGET_S = 60.0
LEAST_BUDGET_S, MOST_BUDGET_S = 1.0, 3600.0
_OF_MEASURING = ("budget", "device")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    add = parser.add_argument
    add("--out", metavar="FILE.yaml", help="write the cluster profile there")
    add("--force", action="store_true", help="replace FILE.yaml if it exists")
    add("--device", metavar="D", help="cuda or cpu (default: cuda); cpu shows how it goes in seconds")
    add("--cluster", metavar="C", help="zoo name, or path of a descriptor, with this GPU (default: by the GPU's name)")
    add(
        "--budget", metavar="S", type=seconds(LEAST_BUDGET_S, MOST_BUDGET_S), help="seconds to measure for (default 60)"
    )
    add("--raw", metavar="FILE.yaml", help="write each kernel's time there (symconfig.kernel_times/1)")
    add("--times", metavar="FILE.yaml", help="fit to such a file's times instead of measuring")


def run(arguments: argparse.Namespace) -> int:
    """Print measured rates and fitted constants, and write the files asked for; return 0. Raises InputError."""
    from symconfig.measured.gpu.kernel_fit import fit_kernels
    from symconfig.measured.gpu.kernel_times import as_yaml
    from symconfig.report.kernels import blocks, to_dict

    out, raw = file_of(arguments.out), file_of(arguments.raw)
    times, with_gpu = _times(arguments, out)
    if raw is not None:
        write_text(raw, as_yaml(times), arguments.force)
        note(f"wrote {raw}")
    fit = fit_kernels(times, with_gpu) if with_gpu is not None else None
    if out is not None and fit is not None:
        from symconfig.descriptor.write import kernels_yaml

        head = f"# Constants of {fit.cluster.name}'s GPU, fitted to {len(fit.rows)} kernels measured on {times.rig}.\n"
        use = "# A cluster descriptor uses them with `kernels: ./` and this file's name, relative to its own folder.\n"
        write_text(out, head + use + kernels_yaml(fit.kernels), arguments.force)
        note(f"wrote {out}")
    show(arguments, lambda: to_dict(times, fit), lambda: blocks(times, fit))
    return 0


def _times(arguments: argparse.Namespace, out: Path | None) -> tuple[KernelTimes, ClusterDescriptor | None]:
    """Return (kernel times of a file or measured now, the cluster with their peaks or None).

    Raises InputError with all problems before anything is measured.
    """
    from symconfig.measured.gpu.kernel_times import read

    problems = arguments.problems
    output(arguments, "out", YAML)
    output(arguments, "raw", YAML)
    if arguments.times is not None:
        refuse(arguments, _OF_MEASURING, "says how to measure, and --times takes what a file holds")
    named = problems.read(cluster, arguments.cluster)
    times = problems.collect(lambda: read(_existing(arguments.times))) if arguments.times is not None else None
    if problems.all:
        raise InputError(problems.all)
    if times is not None:
        return times, named or _cluster(times.cluster, times.rig.product, out)
    return _measured(arguments.device, arguments.budget or DEFAULT_BUDGET_S, named, out)


def _measured(
    wanted: str | None, budget_s: float, named: ClusterDescriptor | None, out: Path | None
) -> tuple[KernelTimes, ClusterDescriptor | None]:
    """Return (times measured on this machine within `budget_s` seconds, the cluster with its GPU or None)."""
    from symconfig.measured.gpu.kernels import choose_device, import_torch, measure_kernels, zoo_name

    torch: Any = import_torch()
    device = choose_device(torch, wanted)
    product = torch.cuda.get_device_name() if device == "cuda" else None
    known = named or _cluster(zoo_name(product) if product else None, product, out)
    with working() as progress:
        return measure_kernels(torch, device, budget_s, progress), known


def _cluster(name: str | None, product: str | None, out: Path | None) -> ClusterDescriptor | None:
    """Return the zoo's cluster of this name; None for a CPU if no profile is to be written.

    Raises InputError for a GPU without a cluster, and for a CPU with `out`.
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


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise InputError("there is no such file", file=name)
    return path
