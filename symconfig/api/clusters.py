"""Clusters as a person gives them, by name, file or what differs, made the names that jobs record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.cluster_name import CLUSTER, joined, spelled
from symconfig.descriptor.document import Document, KeyPath
from symconfig.descriptor.load import load_cluster
from symconfig.errors import InputError, Problem

AnyCluster = str | Path | Mapping[str, Any] | ClusterDescriptor


def loaded(cluster: AnyCluster, changes: Mapping[str, str] | None = None) -> ClusterDescriptor:
    """Return the cluster of a name, a path, or a mapping of a base and changes; a descriptor is returned as it is.
    Raises InputError.
    """
    if isinstance(cluster, ClusterDescriptor):
        return cluster
    return load_cluster(str(named(cluster, changes or {})))


def named(cluster: Any, changes: Mapping[str, str], base: str | None = None) -> Any:
    """Return the name of a cluster with its changes. Raises InputError.

    A mapping becomes a name, with `base` if it has none; any other type is returned unchanged for later validation.
    """
    if isinstance(cluster, Mapping):
        cluster = spelled(cluster, base)
    return joined(str(cluster), changes) if isinstance(cluster, str | Path) and changes else cluster


def in_job(document: Document) -> Document:
    """Return a job's document with a cluster mapping replaced by its name; else unchanged. Raises InputError."""
    data = document.data
    if not isinstance(data, dict) or not isinstance(data.get(CLUSTER), Mapping):
        return document
    return replace(document, data={**data, CLUSTER: named(data[CLUSTER], {})})


def in_sweep(document: Document, changes: Mapping[str, str]) -> Document:
    """Return a sweep's document with all its clusters as names, `changes` applied to each. Raises InputError with
    all problems.
    """
    problems: list[Problem] = []

    def of(value: Any, path: KeyPath) -> Any:
        """Return a cluster, or each in a list, as a name; a problem is recorded at its path and the value kept."""
        if isinstance(value, list):
            return [of(item, (*path, number)) for number, item in enumerate(value)]
        try:
            return named(value, changes)
        except InputError as error:
            problems.extend(document.problem(one.what, path, got=one.got, need=one.need) for one in error.problems)
            return value

    def within(fields: Any, path: KeyPath) -> Any:
        if not isinstance(fields, dict) or CLUSTER not in fields:
            return fields
        return {**fields, CLUSTER: of(fields[CLUSTER], (*path, CLUSTER))}

    data = document.data
    if not isinstance(data, dict):
        return document
    data = {name: within(value, (name,)) if name in ("job", "sweep") else value for name, value in data.items()}
    if isinstance(data.get("exclude"), list):
        data["exclude"] = [within(rule, ("exclude", number)) for number, rule in enumerate(data["exclude"])]
    if problems:
        raise InputError(problems)
    return replace(document, data=data)
