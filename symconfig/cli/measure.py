"""`symconfig measure`: the rates of the GPU at hand, and a profile from them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig.cli.options import adds, flag, option
from symconfig.cli.shared import (
    YAML,
    cluster,
    file_of,
    output,
    refuse,
    seconds,
    show,
    working,
    write_text,
)
from symconfig.errors import InputError, Problem

if TYPE_CHECKING:
    from symconfig.descriptor.cluster import ClusterDescriptor

DOES = "time this GPU's kernels and fit the constants of a cluster's profile"
EXAMPLES = ("symconfig measure --out kernels.yaml",)

DEFAULT_BUDGET_S = 60.0
LEAST_BUDGET_S, MOST_BUDGET_S = 1.0, 3600.0
_OF_MEASURING = ("budget", "device")


add_options = adds(
    lambda: (
        option("--out", "FILE.yaml", "write the cluster profile there"),
        flag("--force", "replace FILE.yaml if it exists"),
        option("--device", "D", "cuda or cpu (default: cuda); cpu shows how it goes in seconds"),
        option("--cluster", "C", "zoo name, or path of a descriptor, with this GPU (default: by the GPU's name)"),
        option("--budget", "S", "seconds to measure for (default 60)", type=seconds(LEAST_BUDGET_S, MOST_BUDGET_S)),
        option("--raw", "FILE.yaml", "write each kernel's time there (symconfig.kernel_times/1)"),
        option("--times", "FILE.yaml", "fit to such a file's times instead of measuring"),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Measure a GPU's (or CPU's) kernels, or with --times read their times; print rates and fitted constants, write the
    files asked for; return 0. Constants are fitted unless it is a CPU without --cluster. Raises InputError with all
    problems of options before anything is measured, and for a GPU that neither --cluster nor the zoo knows.
    """
    from symconfig.descriptor.write import kernels_yaml
    from symconfig.measured.gpu.kernel_fit import fit_kernels
    from symconfig.measured.gpu.kernel_times import as_yaml, read
    from symconfig.measured.gpu.kernels import choose_device, import_torch, measure_kernels, zoo_name
    from symconfig.report.kernels import blocks, to_dict

    problems = arguments.problems
    out, raw = output(arguments, "out", YAML), output(arguments, "raw", YAML)
    if arguments.times is not None:
        refuse(arguments, _OF_MEASURING, "is for measuring, and --times reads measured times")
        if not Path(arguments.times).is_file():
            problems.add(Problem("there is no such file", file=arguments.times))
    known = problems.read(cluster, arguments.cluster)
    times = None if problems.all else problems.read(read, file_of(arguments.times))
    if problems.all:
        raise InputError(problems.all)
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
    show(arguments, lambda: to_dict(times, fit), lambda: blocks(times, fit))
    return 0


def _cluster(name: str | None, product: str | None, out: Path | None) -> ClusterDescriptor | None:
    """Return the zoo's cluster of this name; if there is none: None for a CPU (or unknown product) if no profile is to
    be written. Raises InputError for a GPU without a cluster, and for a CPU with `out`.
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
