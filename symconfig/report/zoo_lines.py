"""What the lists of models and clusters say of one."""

from __future__ import annotations

from dataclasses import dataclass

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.mesh import NETWORK
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.count import parameters


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
    """A model in a list. active_parameters: of one token; task: what it is trained for by itself."""

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
