"""What `symconfig partition` is asked for, and its graph: a model, a program or a module, by number of microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import gcd, isqrt, log
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, InstanceOf

from symconfig.cost.machine import LOW_PRECISION
from symconfig.cost.partition.costs import Objective
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_model
from symconfig.descriptor.mesh import Mesh
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import BatchSize, GpuCount, PositiveInt, Strict
from symconfig.errors import MISSING_FIELD, InputError, Problem, Problems
from symconfig.format import either
from symconfig.graph.program.program import Program
from symconfig.solve.partition.run import Programs, Solver

MOST_TURNS = 12  # numbers of microbatches that are tried where none is asked for


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
    rewrite: bool = Field(
        default=False,
        description="also rewrite the graph: products of one input joined, sums and products in another order, "
        "elementwise operators in one kernel; at most 50 operators, repeats counted once",
    )
    timeout: Annotated[float, Field(gt=0, le=86400)] = Field(
        default=10.0, description="seconds for the exact solver (default 10)"
    )


@dataclass(frozen=True, slots=True)
class Source:
    """A graph to partition. programs: by number of microbatches. counts: named sizes that the microbatches must
    divide; empty: none.
    """

    name: str
    programs: Programs
    counts: Mapping[str, int] = field(default_factory=dict)
    batch: int | None = None  # examples of a step
    seq_length: int | None = None
    unfused: bool = False  # attention of a model
    kind: str = "program"  # or "model", "module": what runs the graph as it was given


def once(given: Mapping[str, Any]) -> str:
    """Return which of model, program and module is given. Raises InputError unless exactly one is."""
    named = [name for name in ("model", "program", "module") if given.get(name) is not None]
    if len(named) != 1:
        got, need = " and ".join(named) or "none", "one of model, program and module"
        raise InputError("what is to be partitioned is given once", field="model", got=got, need=need)
    return named[0]


def source_of(job: GraphJob, cluster: ClusterDescriptor) -> Source:
    """Return the graph to partition. Raises InputError if seq_length or attention is given with a program or module."""
    if job.model is not None:
        return _model(job, cluster)
    for name, what in (("seq_length", "sizes"), ("attention", "operators")):
        if (value := getattr(job, name)) is not None:
            raise InputError(f"a program states its own {what}", field=name, got=str(value))
    return _program(job) if job.program is not None else _module(job)


def _model(job: GraphJob, cluster: ClusterDescriptor) -> Source:
    """Return a model's graphs by number of microbatches, which divide the global batch. seq_length: by default the
    model's `usual_length`; attention: flash if the GPU has it, else unfused. Raises InputError with
    all problems, also without global_batch_size.
    """
    from symconfig.frameworks.constraint import flash
    from symconfig.graph.implementation import Implementation, Kernel
    from symconfig.graph.program.of_model import programs

    problems, batch, named = Problems(), job.global_batch_size, job.model
    model = named if isinstance(named, ModelDescriptor) else problems.collect(lambda: load_model(str(named)))
    if batch is None:
        problems.add(Problem(MISSING_FIELD, field="global_batch_size"))
    able = flash(cluster.gpu.architecture, None, engine=True)
    if job.attention == "flash" and not able:
        what = "flash attention does not run on this GPU"
        problems.add(Problem(what, field="attention", got=job.attention, need="unfused"))
    model, batch = problems.need(model), problems.need(batch)
    tokens = job.seq_length or model.usual_length
    unfused = job.attention == "unfused" or not able
    how = Implementation().attending(Kernel.FUSED_SOFTMAX if unfused else Kernel.FLASH)
    of_batch = programs(model, tokens, how)
    return Source(
        model.name, lambda turns: of_batch(batch // turns), {"the global batch": batch}, batch, tokens, unfused, "model"
    )


def _program(job: GraphJob) -> Source:
    """Return a program's graphs by number of microbatches, each with its batch dims divided by that number;
    global_batch_size replaces the batch dim of a file. A Program object is used unchanged: its batch is neither
    replaced nor divided. `batch` is set only if there is one batch dim. Raises InputError for a global batch unless the
    program has exactly one batch dim.
    """
    from symconfig.graph.program.read import load_program

    path, dims = job.program, dict[str, int]()
    assert path is not None
    whole: Program = path if isinstance(path, Program) else load_program(path)
    if job.global_batch_size is not None:
        if len(whole.batch) != 1:
            got = ", ".join(sorted(whole.batch)) or "none"
            need = "one dim that counts examples"
            raise InputError("the batch of this program cannot be set", field="global_batch_size", got=got, need=need)
        dims = dict.fromkeys(whole.batch, job.global_batch_size)
    if isinstance(path, Program):
        return Source(whole.name, lambda turns: whole)
    sizes = {dim: dims.get(dim, whole.sizes[dim]) for dim in sorted(whole.batch)}

    @cache
    def make(turns: int) -> Program:
        if turns == 1 and not dims:
            return whole
        return load_program(path, {dim: size // turns for dim, size in sizes.items()})

    batch = next(iter(sizes.values())) if len(sizes) == 1 else None
    return Source(whole.name, make, sizes, batch=batch)


def _module(job: GraphJob) -> Source:
    """Return the graph of a PyTorch module traced on its example inputs, the same for any number of microbatches.
    Raises InputError if a global batch is given or it cannot be loaded.
    """
    if job.global_batch_size is not None:
        hint = "example inputs of another size, --num-microbatches for a step of several"
        raise InputError("a module runs on its example inputs", field="global_batch_size", hint=hint)
    from symconfig.graph.program.torch_source import load_module

    whole = load_module(str(job.module))
    return Source(whole.name, lambda turns: whole, kind="module")


def turns_of(wanted: int | None, source: Source, gpus: int, most: int) -> tuple[int, ...]:
    """Return the numbers of microbatches to try, rising: the wanted one, else the divisors of all batch dims that
    `thinned` picks (up to `most`, with the largest that has an example per GPU), less those of them that leave a size
    not whole. Without batch dims: the wanted one or 1, unchecked. Raises InputError if the wanted one does not divide
    the batch or leaves a dim that is not whole.
    """
    if not source.counts:
        return (wanted or 1,)
    count = gcd(*source.counts.values())
    if not wanted:
        return tuple(turns for turns in thinned(divisors(count), count // gpus, most) if _whole_sizes(source, turns))
    batch = " and ".join(f"{name} of {size:,}" for name, size in source.counts.items())
    if count % wanted:
        able = (
            f"a divisor of {batch}" if len(source.counts) == 1 else f"{either(divisors(count))}, which divide {batch}"
        )
        raise InputError("does not divide the batch", field="num_microbatches", got=str(wanted), need=able)
    if not _whole_sizes(source, wanted):
        able = either([turns for turns in thinned(divisors(count), wanted) if _whole_sizes(source, turns)])
        what = "leaves a dim of the program that is not whole"
        raise InputError(what, field="num_microbatches", got=str(wanted), need=able)
    return (wanted,)


def _whole_sizes(source: Source, turns: int) -> bool:
    """Return whether the program can be made with this number of microbatches; any InputError counts as no."""
    try:
        source.programs(turns)
    except InputError:
        return False
    return True


def divisors(number: int) -> tuple[int, ...]:
    small = [factor for factor in range(1, isqrt(number) + 1) if number % factor == 0]
    return tuple(sorted({*small, *(number // factor for factor in small)}))


def thinned(rising: Sequence[int], kept: int, most: int = MOST_TURNS) -> tuple[int, ...]:
    """Return all of `rising` if there are at most `most`, else `most` of them: first, last, the largest up to `kept`,
    then repeatedly the one with the largest ratio to its nearest chosen value.
    """
    if len(rising) <= most:
        return tuple(rising)
    chosen = {rising[0], rising[-1], max(one for one in rising if one <= max(kept, rising[0]))}
    while len(chosen) < most:  # the one that is farthest from all that are chosen
        chosen.add(max(rising, key=lambda one: min(abs(log(one / other)) for other in chosen)))
    return tuple(sorted(chosen))
