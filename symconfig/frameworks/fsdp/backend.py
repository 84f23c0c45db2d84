"""PyTorch's fully sharded data parallelism, as the other rooms ask about it."""

from __future__ import annotations

from symconfig.frameworks.backend import Backend, Kind, Medium, Releases
from symconfig.frameworks.deepspeed import adapters
from symconfig.frameworks.fsdp.behaviour import FSDP as USUAL

TORCH_RELEASE = "2.13.0"

FSDP = Backend(
    name="fsdp",
    label="PyTorch FSDP",
    program="a script with PyTorch's FSDP",
    distribution="torch",
    releases=Releases(pinned=TORCH_RELEASE),
    told_by=Medium.CODE,
    usual=USUAL,
    low_precisions=(),
    adapters=False,
    refused_adapters=lambda model, target=None: tuple(adapters.refusals(model)),
    fuses=adapters.fuses,
    gradient_buckets=False,
    pads_vocabulary=False,
    generators_by_replica=lambda release: False,
    writes=lambda zero, release: Kind("fsdp"),
    names_release=False,
)
