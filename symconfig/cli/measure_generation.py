"""`symconfig measure --generation`: an engine's steps on the GPU at hand, and what plans of RL count on."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from symconfig.cli.measure_kernels import choices
from symconfig.cli.shared import file_of, note, refuse, show, whole, working, write_text

if TYPE_CHECKING:
    from symconfig.descriptor.model import ModelDescriptor
    from symconfig.measured.gpu.kernel_times import KernelTimes


def run(arguments: argparse.Namespace) -> int:
    """Exit 0; bad input is exit 2, as for every command."""
    from symconfig.api.planning import Problems
    from symconfig.descriptor.load import load_cluster, load_model, zoo_clusters
    from symconfig.measured.gpu.kernel_times import as_yaml
    from symconfig.report.generation import blocks, to_dict
    from symconfig.runs.rl.observed import compare

    problems = Problems()
    refuse(problems, arguments, ("folder", "kernels", "out"), "is for another measurement than that of generation")
    models = [problems.collect(partial(load_model, name)) for name in arguments.generation]
    layers = problems.collect(lambda: whole("--layers", arguments.layers))
    chosen = choices(arguments, problems)
    known = [model for model in models if model is not None]
    times = chosen.times or _measured(arguments, known, layers, chosen.budget_s)
    if (raw := file_of(arguments.raw)) is not None:
        write_text(raw, as_yaml(times), arguments.force)
        note(f"wrote {raw}")
    cluster = chosen.cluster or (load_cluster(times.cluster) if times.cluster in zoo_clusters() else None)
    points = compare(times, known, cluster)
    show(arguments, lambda: to_dict(times, points), lambda: blocks(times, points))
    return 0


def _measured(
    arguments: argparse.Namespace, models: list[ModelDescriptor], layers: int | None, budget_s: float
) -> KernelTimes:
    from symconfig.measured.gpu.generation import measure_generation
    from symconfig.measured.gpu.kernels import choose_device, import_torch

    torch: Any = import_torch()
    device = choose_device(torch, arguments.device)
    with working() as progress:
        return measure_generation(torch, device, models, budget_s, progress, layers)
