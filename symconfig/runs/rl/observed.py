"""Measured steps of an engine, and the seconds that `engine` predicts of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from symconfig.cost.machine import machine
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.measured.gpu.kernel_times import Generate, KernelTimes, Row
from symconfig.runs.rl.engine import Engine


@dataclass(frozen=True, slots=True)
class Observed:
    """A measured part of generation. predicted_s: of the GPU's own work; None without a cluster's rates, or of a
    model's first layers alone."""

    row: Row
    what: Generate
    predicted_s: float | None


def compare(
    times: KernelTimes, models: Sequence[ModelDescriptor], cluster: ClusterDescriptor | None
) -> tuple[Observed, ...]:
    """Return the measured parts of these models' generation, with their predictions on a GPU of the cluster."""
    named = {model.name: model for model in models}
    points = []
    for row in times.rows:
        if isinstance(row.what, Generate) and (model := named.get(row.model or "")) is not None:
            whole = row.what.layers == model.num_hidden_layers
            seconds = predicted_s(row.what, model, cluster) if cluster is not None and whole else None
            points.append(Observed(row, row.what, seconds))
    return tuple(points)


def predicted_s(what: Generate, model: ModelDescriptor, cluster: ClusterDescriptor) -> float:
    """Return the seconds that the engine's model gives this part on one GPU, without its scheduler."""
    engine = Engine(model, machine(cluster, "bf16"), 1)
    if what.part == "prefill":
        return engine.prefilling_s(float(what.tokens), float(what.context))
    sequences, context = np.array([float(what.sequences)]), np.array([float(what.context)])
    seconds = engine.sampling_s(sequences) if what.part == "sample" else engine.decoding_s(sequences, context)
    return float(seconds[0])
