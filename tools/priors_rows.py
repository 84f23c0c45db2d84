"""Published measurements of kernels (schema symconfig.kernel_measurements/1) as kernels of the cost model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import yaml

from symconfig.descriptor.cluster import ClusterDescriptor, Level
from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.measured.gpu.kernel_fit import Attention, CastProduct, Kernel, Product, Stream, needs
from symconfig.units import GIB, MIB

# What is smaller runs in no training, or measures something else.
LEAST_SIDE = 512  # of a product
LEAST_FLOPS = 2.0 * 4096 * 4096 * 2048  # the formula is 20 to 40 % slow for smaller ones on Blackwell and CDNA4
LEAST_LENGTH = 2048
LEAST_STREAM = 256 * MIB  # less lies in the cache of a Blackwell
LEAST_MESSAGE = 256 * MIB  # XLA's rows have 30 to 100 us of its own in each
# NVLink's switches add up what they carry, and an all-reduce in one of their domains is faster than any ring: no
# formula of a ring explains it.
_SWITCHES_ADD = ("hopper", "blackwell")
_TREE_OF_TWO = 2  # nodes, whose all-reduce needs no ring either
_PORTS = re.compile(r"\+.*?_(\d+)x(\d+)gbps")
_OWN_NETWORK = re.compile(r"\+ib$")
_FIGURE_CHANNELS = 2048  # of all heads in FlashAttention's figures, which leave the heads out
# What tells tasks apart.
_SHAPE = (
    *("gpu", "kind", "op", "dtype", "pass", "stage", "batch", "m", "n", "k", "groups", "m_per_group"),
    *("seq", "heads", "kv_heads", "head_dim", "rows", "cols"),
)
# Of a layer's products x[m, k] W[k, n]: the sizes of the forward, of the input's gradient and of the weight's.
_TURNED: dict[str, Callable[[int, int, int], tuple[int, int, int]]] = {
    "fprop": lambda m, n, k: (m, n, k),
    "dgrad": lambda m, n, k: (m, k, n),
    "wgrad": lambda m, n, k: (k, n, m),
}


@dataclass(frozen=True, slots=True)
class Message:
    """A collective of `ranks` neighbours, each with a tensor of so many bytes before or after it."""

    op: str
    ranks: int
    bytes_: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Kernels that ran one after the other. cluster: with the network that they used."""

    id: str
    source: str
    cluster: ClusterDescriptor
    work: tuple[Kernel | Message, ...]
    seconds: float

    @property
    def needs(self) -> frozenset[str]:
        """Return the constants that explain its time."""
        result: set[str] = set()
        for item in self.work:
            if isinstance(item, Message):
                inside = item.ranks <= (self.cluster.levels[0].size or item.ranks)
                result.add("link_efficiency" if inside else "network_efficiency")
            else:
                result |= set(needs(item))
        return frozenset(result)


def read(folder: Path) -> tuple[dict[str, str], list[Measured]]:
    """Return what the sources are, and every row at a training's size on a GPU of the zoo."""
    known = {
        name: cluster for cluster in map(load_cluster, zoo_clusters()) for name in (cluster.name, *cluster.aliases)
    }
    titles: dict[str, list[str]] = {}
    best: dict[tuple[object, ...], Measured] = {}
    for path in sorted(folder.glob("*.yaml")):
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        for source in data["sources"]:
            titles.setdefault(source["id"], []).append(f"{source['title']} ({source.get('repo') or source['url']})")
        for row in data["rows"]:
            item = _measured(row, known[row["gpu"]]) if row["gpu"] in known else None
            if item is None:
                continue
            # Of several kernels for one task people run the fastest.
            same = (item.source, item.work, *(row.get(name) for name in _SHAPE))
            if same not in best or item.seconds < best[same].seconds:
                best[same] = item
    return {name: "; ".join(dict.fromkeys(each)) for name, each in titles.items()}, list(best.values())


def _measured(row: dict[str, Any], cluster: ClusterDescriptor) -> Measured | None:
    """Return a row as the cost model's kernels.

    None where it has none for it, or only smaller ones run in a training.
    """
    for reader in (_products, _attention, _stream, _message):
        read_as = reader(row, cluster)
        if read_as is not None:
            where, work, seconds = read_as
            return Measured(row["id"], row["source"], where, work, seconds)
    return None


Read = tuple[ClusterDescriptor, tuple[Kernel | Message, ...], float] | None


def _dtype(stated: str, cluster: ClusterDescriptor) -> str | None:
    """Return the precision of the cost model.

    None where the source does not say which fp4, or the GPU has no such peak.
    """
    names = {"bf16": "bf16", "fp16": "fp16", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
    name = names.get(stated, "fp8" if stated.startswith("fp8") else None)
    return name if name and getattr(cluster.gpu.peak_flops, name) is not None else None


def _products(row: dict[str, Any], cluster: ClusterDescriptor) -> Read:
    kinds = ("gemm", "gemm_best_shape", "grouped_gemm", "gemm_with_quantization", "gemm_layer_sum")
    dtype = _dtype(row.get("dtype", ""), cluster)
    # Sums into an earlier result are priced apart, and masked groups are of inference.
    if row["kind"] not in kinds or dtype is None or row.get("accumulate") or "masked" in row.get("note", ""):
        return None
    quantised = row["kind"] == "gemm_with_quantization" or "autocast" in row.get("software", "")
    cls = Product if quantised else CastProduct
    if row["kind"] == "gemm_layer_sum":
        shapes = _layer(row["m"], row["hidden"], row["ffn_hidden"], row["stage"])
    elif row["kind"] == "grouped_gemm" and "m_per_group" in row:
        shapes = [(row["groups"], row["m_per_group"], row["n"], row["k"])]
    elif row["kind"] != "grouped_gemm" and all(name in row for name in "mnk"):
        shapes = [(row.get("batch", 1), row["m"], row["n"], row["k"])]
    else:
        return None
    work = tuple(
        cls.model_validate({"dtype": dtype, "layout": "forward", "batch": b, "m": m, "n": n, "k": k})
        for b, m, n, k in shapes
    )
    flops = sum(item.flops for item in work)
    if flops < LEAST_FLOPS or min(min(item.m, item.n, item.k) for item in work) < LEAST_SIDE:
        return None
    return cluster, work, flops / (row["tflops"] * 1e12)


def _layer(tokens: int, hidden: int, ffn: int, stage: str) -> list[tuple[int, int, int, int]]:
    """Return the four products of a layer.

    Queries, keys and values together, the attention's output, both of the MLP.
    """
    forward = [(tokens, 3 * hidden, hidden), (tokens, hidden, hidden), (tokens, ffn, hidden), (tokens, hidden, ffn)]
    return [(1, *_TURNED[stage](*shape)) for shape in forward]


def _attention(row: dict[str, Any], cluster: ClusterDescriptor) -> Read:
    """Read a row of attention, causal and in 16 bits."""
    sixteen = row.get("dtype") in ("bf16", "fp16", "fp16_bf16")
    if row["kind"] != "attention" or row.get("causal") is not True or not sixteen or "window" in row:
        return None
    if row["seq"] < LEAST_LENGTH or row["impl"] == "pytorch_standard":
        return None
    heads = row.get("heads") or _FIGURE_CHANNELS // row["head_dim"]
    shape = {
        "batch": row["batch"],
        "heads": heads,
        "kv_heads": row.get("kv_heads") or heads,
        "length": row["seq"],
        "channels": row["head_dim"],
        "value_channels": row.get("v_head_dim") or row["head_dim"],
    }
    ways = {"fwd": (False,), "bwd": (True,), "fwd_bwd": (False, True)}[row["pass"]]
    work = tuple(Attention.model_validate(shape | {"backward": backward}) for backward in ways)
    return cluster, work, sum(item.flops for item in work) / (row["tflops"] * 1e12)


def _stream(row: dict[str, Any], cluster: ClusterDescriptor) -> Read:
    """Read a row of norms, or of copies and sums of large arrays."""
    if row["kind"] == "norm" and row["op"] in ("rms_norm", "layer_norm"):
        what = row["op"].replace("_", "")
        norm = Stream(what=what, backward=row["pass"] == "bwd", rows=row["rows"], columns=row["cols"])
        return (cluster, (norm,), row["us"] * 1e-6) if 2 * norm.moved >= LEAST_STREAM else None
    op = row["op"].removeprefix("stream_") if row["kind"] in ("hbm_bandwidth", "stream") else None
    if op not in ("copy", "add", "triad", "scale", "default"):
        return None
    copy = Stream(what="copy", rows=2**15, columns=2**14)
    assert 2 * copy.moved >= GIB
    return cluster, (copy,), 2 * copy.moved / (row["gb_per_s"] * 1e9)


def _message(row: dict[str, Any], cluster: ClusterDescriptor) -> Read:
    """Read a row of collectives of whole domains; over nodes on networks whose rate is stated."""
    factors = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
    if row["kind"] != "collective" or row["op"] not in factors or row.get("bytes", 0) < LEAST_MESSAGE:
        return None
    nodes = ceil(row["ranks"] / cluster.gpus_per_node)
    if row.get("nodes", nodes) != nodes:
        return None  # some GPUs of more nodes
    inside = row["ranks"] <= (cluster.levels[0].size or row["ranks"])
    adds = cluster.gpu.architecture in _SWITCHES_ADD if inside else nodes == _TREE_OF_TWO
    if row["op"] == "all_reduce" and adds:
        return None
    where = cluster if inside else _on_network(cluster, row["network"])
    if where is None or "busbw_gb_per_s" not in row:
        return None
    moved = factors[row["op"]] * (row["ranks"] - 1) / row["ranks"] * row["bytes"]
    return where, (Message(row["op"], row["ranks"], row["bytes"]),), moved / (row["busbw_gb_per_s"] * 1e9)


def _on_network(cluster: ClusterDescriptor, network: str) -> ClusterDescriptor | None:
    """Return the cluster with the ports of a node that a row states; None where it states no rate."""
    if _OWN_NETWORK.search(network):
        return cluster
    ports = _PORTS.search(network)
    if ports is None:
        return None
    share = int(ports[1]) * int(ports[2]) * 1e9 / 8 / cluster.gpus_per_node

    def at(level: Level) -> Level:
        rate = level.bandwidth_bytes_per_s.model_copy(update={"value": share})
        return level.model_copy(update={"bandwidth_bytes_per_s": rate})

    return cluster.model_copy(update={"levels": (cluster.levels[0], *map(at, cluster.levels[1:]))})
