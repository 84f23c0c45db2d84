"""A network's levels, changed by name, or for nodes of another number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor, Kernels, Level, Precisions, Quantity
from symconfig.descriptor.document import Document, KeyPath, shorten
from symconfig.descriptor.mesh import NETWORK
from symconfig.errors import Problem


@dataclass(slots=True)
class Levels:
    """A base's levels with a document's merged into them. paths: where the document has them, by name."""

    merged: list[dict[str, Any]]
    document: Document
    problems: list[Problem]
    paths: dict[str, KeyPath] = field(default_factory=dict)

    def by_name(self, stated: Any) -> dict[str, tuple[Any, KeyPath]]:
        """Return the stated levels by name, each with its path: a section of `name: fields`, or a list."""
        if isinstance(stated, dict):
            return {name: (value, ("levels", name)) for name, value in stated.items()}
        if not isinstance(stated, list):
            self._wrong("wrong value", ("levels",), got=shorten(stated), need="a section of `level: fields`")
            return {}
        levels: dict[str, tuple[Any, KeyPath]] = {}
        for index, entry in enumerate(stated):
            name = entry.get("name") if isinstance(entry, dict) else None
            if not isinstance(name, str):
                need = f"the name of a level: {', '.join(each['name'] for each in self.merged)}, or a new one"
                self._wrong("the level has no name", ("levels", index), need=need)
            elif name in levels:
                self._wrong(f"{name} stands there twice", ("levels", index, "name"))
            else:
                levels[name] = (entry, ("levels", index))
        return levels

    def put(self, name: str, value: Any, path: KeyPath) -> None:
        """Merge one level: null takes it out, a name that the base does not have goes where its size belongs."""
        here = next((index for index, each in enumerate(self.merged) if each["name"] == name), None)
        if value is None:
            if here is None:
                need = f"one of {', '.join(each['name'] for each in self.merged)}"
                self._wrong("the base has no such level", path, of_key=True, need=need)
            else:
                del self.merged[here]
            return
        if not isinstance(value, dict):
            self._wrong("wrong value", path, got=shorten(value), need="the fields of a level, or null for none")
            return
        self.paths[name] = path
        if here is not None:
            self.merged[here] = {**merged(self.merged[here], value), "name": name}
            return
        size = value.get("size")
        own = size if isinstance(size, int) else inf
        later = (i for i, each in enumerate(self.merged) if each["size"] is None or each["size"] > own)
        self.merged.insert(next(later, len(self.merged)), {**value, "name": name})

    def _wrong(self, what: str, path: KeyPath, *, of_key: bool = False, **parts: str | None) -> None:
        self.problems.append(self.document.problem(what, path, of_key=of_key, **parts))


def merged(base: Any, over: Any) -> Any:
    """Return `over` laid over the base, field by field; a number with its source is one field."""
    if not isinstance(over, dict) or not isinstance(base, dict) or "value" in over:
        return over
    return {**base, **{name: merged(base.get(name), value) for name, value in over.items()}}


def with_gpus_per_node(levels: list[dict[str, Any]], before: int, now: int, source: str) -> list[dict[str, Any]]:
    """Return the levels of a cluster whose nodes have `now` GPUs and had `before`.

    The level that joins a node's GPUs joins as many as there are, one within the node at most so many, and switches
    join as many nodes as they did. Racks with a fast link across nodes stay as they are. A level that joins no more
    than the one inside it is left out. Bandwidths are of one GPU and stay; of links to each peer there are fewer.
    """
    if now == before or any((each["size"] or 0) > before for each in levels if each["name"] not in NETWORK):
        return levels
    fields: list[dict[str, Any]] = []
    for level in levels:
        size = _size(level, before, now)
        if size is None or size > max([each["size"] for each in fields], default=1):
            fields.append(_fewer_links({**level, "size": size}, level["size"], source))
    return fields


def _size(level: dict[str, Any], before: int, now: int) -> int | None:
    size: int | None = level["size"]
    if size is None:
        return None
    if level["name"] in NETWORK:
        return size * now // before
    return now if size == before else min(size, now)


def _fewer_links(level: dict[str, Any], before: int | None, source: str) -> dict[str, Any]:
    """Return a level of links between all pairs with the links that its GPUs have left."""
    now = level["size"]
    if not level.get("mesh") or before is None or now is None or now >= before:
        return level
    old = level["bandwidth_bytes_per_s"]
    rate = {**old, "value": old["value"] * (now - 1) / (before - 1), "source": f"{source}: {now} GPUs; {old['source']}"}
    return {**level, "bandwidth_bytes_per_s": rate}


# How sure a constant is that was fitted with other hardware than it is used for: as sure as one of a GPU of which no
# run was seen (`ANY_GPU` of measured/priors.py; tests/descriptor/test_carried.py holds them to each other).
CARRIED: Mapping[str, Mapping[str, float]] = {
    "network": {"network_efficiency": 0.2},
    "links": {"link_efficiency": 0.25},
    "peak": {"gemm_efficiency": 0.2, "gemm_efficiency_low": 0.25, "attention_efficiency": 0.3},
    "memory": {"hbm_efficiency": 0.15},
}
_WORDS = {"network": "another network", "links": "other links", "peak": "another peak", "memory": "another memory"}


def carried(base: ClusterDescriptor, cluster: ClusterDescriptor, stated: frozenset[str]) -> ClusterDescriptor:
    """Return the cluster with less trust in the base's constants that belong to hardware which is another one now."""
    update: dict[str, Quantity] = {}
    before, now = _hardware(base), _hardware(cluster)
    for what, constants in CARRIED.items():
        if all(now[what][name] == rate for name, rate in before[what].items() if name in now[what]):
            continue
        for name, least in constants.items():
            quantity: Quantity | None = getattr(cluster.kernels, name)
            if quantity is not None and name not in stated:
                source = f"{quantity.source}; carried over from {base.name} to {_WORDS[what]}"
                spread = max(quantity.uncertainty, least)
                update[name] = quantity.model_copy(update={"source": source, "uncertainty": spread})
    if not update:
        return cluster
    kernels: Kernels = cluster.kernels.model_copy(update=update)
    return cluster.model_copy(update={"kernels": kernels})


def _hardware(cluster: ClusterDescriptor) -> dict[str, dict[str, float]]:
    """Return what the kernels' constants are shares of, by name."""
    rates = {level.name: _link(level) for level in cluster.levels}
    gpu = cluster.gpu
    peaks: dict[str, Quantity | None] = {name: getattr(gpu.peak_flops, name) for name in Precisions.model_fields}
    return {
        "network": {name: rate for name, rate in rates.items() if name in NETWORK},
        "links": {name: rate for name, rate in rates.items() if name not in NETWORK},
        "peak": {name: peak.value for name, peak in peaks.items() if peak is not None},
        "memory": {"bandwidth": gpu.memory_bandwidth_bytes_per_s.value},
    }


def _link(level: Level) -> float:
    """Return the bandwidth of a level's port, or of one of its links to each peer."""
    rate = level.bandwidth_bytes_per_s.value
    return rate / (level.size - 1) if level.mesh and level.size else rate
