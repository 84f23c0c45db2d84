"""What `symconfig partition` is asked for: its options, which are keys of its JOB.yaml and arguments in Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, InstanceOf

from symconfig.cost.machine import LOW_PRECISION
from symconfig.cost.partition.costs import Objective
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.mesh import Mesh
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import BatchSize, GpuCount, PositiveInt, Strict
from symconfig.graph.program.program import Program
from symconfig.solve.partition.run import Solver


def pin_texts(value: Any) -> tuple[str, ...]:
    """Return pins as texts NAME=SPLIT, of a mapping or a list; raise ValueError for anything else."""
    if isinstance(value, Mapping):
        return tuple(f"{name}={split}" for name, split in value.items())
    if not isinstance(value, list | tuple):
        raise ValueError("must hold `NAME: SPLIT` lines")
    return tuple(value)


def _wide(value: Any) -> Any:
    if value in LOW_PRECISION:
        raise ValueError("the tensor solver prices matmuls in 16 bits: it knows neither casts nor scales")
    return value


class GraphJob(Strict):
    """The arguments of `symconfig.partition`, which are the options of the command and the keys of its JOB.yaml."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: str | InstanceOf[ModelDescriptor] | None = Field(
        default=None, description="zoo name, id of Hugging Face, or path of a descriptor or config.json"
    )
    program: str | Path | InstanceOf[Program] | None = Field(
        default=None,
        description="file of operators over named dims, or a program of the zoo (docs/reference/programs.md)",
    )
    module: str | None = Field(
        default=None, description="a PyTorch module that the factory PACKAGE:FACTORY makes; needs symconfig[module]"
    )
    cluster: str | InstanceOf[ClusterDescriptor] = Field(description="zoo name, or path of a descriptor")
    gpus: GpuCount | None = Field(default=None, description="how many of its GPUs")
    mesh: str | Path | InstanceOf[Mesh] | None = Field(
        default=None, description="file of levels instead of the cluster's"
    )
    global_batch_size: BatchSize | None = Field(default=None, description="sequences, or examples, per optimizer step")
    seq_length: PositiveInt | None = Field(
        default=None, description="tokens (default: the smaller of the model's and 4096)"
    )
    num_microbatches: PositiveInt | None = Field(
        default=None, description="that a step is cut into (default: what divides the batch is tried)"
    )
    stages: Annotated[str | None, BeforeValidator(lambda value: str(value) if type(value) is int else value)] = Field(
        default=None, description="also cut it into stages of a pipeline: 4, or 1..8 for the best (default: no cut)"
    )
    precision: Annotated[Literal["auto", "bf16", "fp16"], BeforeValidator(_wide)] = Field(
        default="auto", description="bf16 or fp16 (default: bf16, or fp16 where the GPU has no bf16)"
    )
    attention: Literal["flash", "unfused"] | None = Field(
        default=None, description="of a model: flash (default, where the GPU has it) or unfused"
    )
    recompute: Literal["none", "full", "auto"] = Field(
        default="auto", description="none, full (of repeated parts), or auto (default) for the faster"
    )
    memory_limit: str | float | None = Field(
        default=None, description="of tensors on a GPU, as 60GiB or 80% (default: what a plan may use)"
    )
    flat: bool = Field(default=True, description="weights may be kept in smaller parts than they are used in (ZeRO)")
    pins: Annotated[tuple[str, ...], BeforeValidator(pin_texts)] = Field(
        default=(),
        description="fix a tensor's dim, as layers.*.up.ffn=8, or an operator, as layers.*.up_proj=batch/2, ffn/4",
    )
    solver: Annotated[Solver, Field(strict=False)] = Field(
        default=Solver.AUTO, description="auto (default: adaptive, then exact), adaptive or exact"
    )
    objective: Annotated[Objective, Field(strict=False)] = Field(
        default=Objective.TIME, description="time (default) or symtensor"
    )
    gamma: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="of symtensor, whose cost is kept / G + moved (default: adapted until it fits)"
    )
    timeout: Annotated[float, Field(gt=0, le=86400)] = Field(
        default=10.0, description="seconds for the exact solver (default 10)"
    )
