"""`symconfig list clusters` and `symconfig list models`: the lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symconfig.descriptor.cluster import NETWORK, ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.format import count
from symconfig.graph.count import parameters
from symconfig.report.grid import Block, Grid

_GIGA, _TERA = 1e9, 1e12
_BILLION, _MILLION = 1e9, 1e6


def cluster_list(lines: Sequence[ClusterLine]) -> list[Block]:
    """Return the table of clusters with notes on units."""
    rows = (
        {
            "name": one.name,
            "GPU": one.gpu,
            "GiB": f"{one.memory_bytes / 2**30:.1f}",
            "TFLOP/s": f"{one.peak_flops / _TERA:,.0f}",
            "a node": str(one.gpus_per_node),
            "link": f"{one.link_bytes_per_s / _GIGA:.4g}",
            "network": f"{one.network_bytes_per_s / _GIGA:.3g}" if one.network_bytes_per_s is not None else "none",
        }
        for one in lines
    )
    return [
        Grid.of(rows, words=("name", "GPU")),
        "TFLOP/s: dense, bf16 (fp16 where there is no bf16). a node: GPUs of it. link, network: GB/s of a GPU in one "
        "direction, of the fastest link in its node or rack, and between them.",
        "`symconfig list clusters NAME` shows one with its sources. A cluster of your own in a few lines: "
        "docs/reference/cluster-files.md, or `--set network=4x200Gb/s` beside `--cluster`.",
    ]


def model_list(lines: Sequence[ModelLine]) -> list[Block]:
    """Return the table of models with notes on columns."""
    rows = (
        {
            "name": one.name,
            "parameters": _parameters(one.parameters),
            "active": _parameters(one.active_parameters),
            "layers": str(one.num_hidden_layers),
            "hidden": count(one.hidden_size),
            "tokens": count(one.max_position_embeddings),
            "experts": str(one.num_experts or ""),
            "adapter": "" if one.task == "pretrain" else one.task,
        }
        for one in lines
    )
    return [
        Grid.of(rows, words=("name", "adapter")),
        "active: parameters that one token meets. tokens: the longest sequence.",
        "`symconfig list models NAME` shows one. A model of your own: `--model PATH` of its config.json, or of what "
        "`symconfig import` makes of it.",
    ]


def model_sizes(model: ModelDescriptor) -> str:
    """Return a model's total, active and (if fewer) trainable parameters in a line."""
    counted = parameters(model)
    sizes = [f"{count(counted.total)} parameters ({_parameters(counted.total)})"]
    sizes.append(f"{count(counted.active)} active for a token")
    if counted.trainable != counted.total:
        sizes.append(f"{count(counted.trainable)} trained")
    return ", ".join(sizes)


def _parameters(number: int) -> str:
    return f"{number / _BILLION:.2f} B" if number >= _BILLION / 10 else f"{number / _MILLION:.0f} M"


@dataclass(frozen=True, slots=True)
class ClusterLine:
    """A cluster in a list. Rates are of one GPU and one direction; link: the fastest within its node or rack; network:
    between them; peak_flops: dense, bf16, or fp16 where the GPU has no bf16."""

    name: str
    gpu: str
    gpus_per_node: int
    memory_bytes: float
    peak_flops: float
    link: str
    link_bytes_per_s: float
    network_bytes_per_s: float | None

    @staticmethod
    def of(cluster: ClusterDescriptor) -> ClusterLine:
        """Return a cluster's summary: rates per GPU; the peak is bf16, else fp16; network is None without one."""
        inner, gpu = cluster.levels[0], cluster.gpu
        network = next((level for level in cluster.levels if level.name in NETWORK), None)
        return ClusterLine(
            name=cluster.name,
            gpu=gpu.product,
            gpus_per_node=cluster.gpus_per_node,
            memory_bytes=gpu.memory_bytes.value,
            peak_flops=(gpu.peak_flops.bf16 or gpu.peak_flops.fp16).value,
            link=inner.name,
            link_bytes_per_s=inner.bandwidth_bytes_per_s.value,
            network_bytes_per_s=network.bandwidth_bytes_per_s.value if network is not None else None,
        )


@dataclass(frozen=True, slots=True)
class ModelLine:
    """A model in a list. active_parameters: used by one token; task: "lora" for a model with an adapter, else
    "pretrain".
    """

    name: str
    huggingface_id: str | None
    task: str
    parameters: int
    active_parameters: int
    trainable_parameters: int
    num_hidden_layers: int
    hidden_size: int
    max_position_embeddings: int
    num_experts: int | None

    @staticmethod
    def of(model: ModelDescriptor) -> ModelLine:
        """Return a model's summary: parameters, sizes and task."""
        count = parameters(model)
        return ModelLine(
            name=model.name,
            huggingface_id=model.huggingface_id,
            task="pretrain" if model.adapter is None else "lora",
            parameters=count.total,
            active_parameters=count.active,
            trainable_parameters=count.trainable,
            num_hidden_layers=model.num_hidden_layers,
            hidden_size=model.hidden_size,
            max_position_embeddings=model.max_position_embeddings,
            num_experts=model.experts.num_experts if model.experts is not None else None,
        )
