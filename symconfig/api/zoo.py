"""Models and clusters that come with symconfig, listed; any of them, or one's own, as a whole."""

from __future__ import annotations

from pathlib import Path

from symconfig.api.clusters import AnyCluster
from symconfig.api.clusters import loaded as load
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_model, zoo_clusters, zoo_models
from symconfig.descriptor.model import ModelDescriptor
from symconfig.report.zoo import ClusterLine, ModelLine


def clusters() -> tuple[ClusterLine, ...]:
    """Return a summary line of each cluster in the zoo."""
    return tuple(ClusterLine.of(load(name)) for name in zoo_clusters())


def models() -> tuple[ModelLine, ...]:
    """Return a summary line of each model in the zoo."""
    return tuple(ModelLine.of(load_model(name)) for name in zoo_models())


def cluster(of: AnyCluster) -> ClusterDescriptor:
    """Return a cluster's descriptor by name, path or changes. Raises InputError."""
    return load(of)


def model(of: str | Path) -> ModelDescriptor:
    """Return a model's descriptor by name or path. Raises InputError."""
    return load_model(str(of))
