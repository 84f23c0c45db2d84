"""What `symconfig.partition` and `symconfig partition` were asked: read, checked, all that is wrong at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from math import gcd, isqrt, log
from typing import Any, TypeVar

from symconfig.api.clusters import loaded
from symconfig.api.problems import Problems
from symconfig.cost.machine import LOW_PRECISION
from symconfig.cost.partition.costs import Keep, Objective
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_model
from symconfig.descriptor.mesh import Mesh
from symconfig.descriptor.mesh_source import load_mesh, of_cluster
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem
from symconfig.format import either
from symconfig.graph.program.program import Program
from symconfig.plans.choices import Precision
from symconfig.report.partition_said import names_of
from symconfig.solve.partition.pinned import Pin, check, read
from symconfig.solve.partition.pipeline.submeshes import submeshes
from symconfig.solve.partition.run import FEW, Ask, Programs, Solver, net_of
from symconfig.solve.pins import number_range
from symconfig.units import GIB

DEFAULT_SEQUENCE = 4096
MARGIN = 0.04  # of the GPU's memory, as `symconfig plan` leaves free
MOST = 10**9
LIMIT_S = 10.0  # of the exact solver
MOST_TURNS = 12  # numbers of microbatches that are tried where none is asked for
RECOMPUTE: Mapping[str, tuple[Keep, ...]] = {
    "none": (Keep.USED, Keep.SHARDS),
    "full": (Keep.BORDERS,),
    "auto": tuple(Keep),
}
WIDE: tuple[Precision, ...] = ("bf16", "fp16")
_PRECISIONS = ("auto", *WIDE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[GMT]iB|[GM]B|)", re.IGNORECASE)
_UNITS = {"gib": GIB, "mib": GIB / 1024, "tib": 1024 * GIB, "gb": 1e9, "mb": 1e6, "": GIB}
Word = TypeVar("Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Source:
    """Programs by the number of microbatches. counts: what those have to divide; none: nothing. model: where it is
    one."""

    name: str
    programs: Programs
    counts: Mapping[str, int] = field(default_factory=dict)
    model: ModelDescriptor | None = None
    batch: int | None = None  # examples of a step
    seq_length: int | None = None
    module: str = ""  # the factory of one


@dataclass(frozen=True, slots=True)
class Asked:
    """grown: the mesh of so many times as many GPUs. stages: the fewest and the most of a pipeline; None: of none."""

    source: Source
    cluster: ClusterDescriptor
    ask: Ask
    grown: Callable[[int], Mesh | None]
    stages: tuple[int, int] | None = None

    @property
    def mesh(self) -> Mesh:
        return self.ask.mesh


def asked(given: Mapping[str, Any]) -> Asked:
    """given: the arguments of `symconfig.partition` by name; numbers may be text. Raises InputError with everything."""
    found = Problems()
    cluster = found.collect(lambda: _cluster(given))
    grown = found.collect(lambda: _mesh(given, cluster))
    source = found.collect(lambda: _source(given))
    tries = MOST_TURNS if given.get("stages") is None else MOST_TURNS // 2
    turns = found.collect(lambda: _turns(given, source, grown(1).gpus if grown is not None else 1, tries))
    solver = found.collect(lambda: _word("solver", Solver, given))
    objective = found.collect(lambda: _word("objective", Objective, given))
    keeps = found.collect(lambda: _recompute(given))
    limit = found.collect(lambda: _limit(given.get("memory_limit"), cluster))
    limit_s = found.collect(lambda: _span(given.get("limit_s")))
    gamma = found.collect(lambda: _gamma(given.get("gamma"), objective))
    precision = found.collect(lambda: _precision(given.get("precision"), cluster))
    stages = found.collect(lambda: _stages(given.get("stages"), grown, objective))
    pins = found.collect(lambda: _pins(given.get("pins"), source, turns, grown, stages is not None))
    if (
        cluster is None or grown is None or source is None or turns is None or solver is None or objective is None
        or keeps is None or limit is None or limit_s is None or precision is None or pins is None or found.all
    ):  # fmt: skip
        raise InputError(found.all)
    ask = Ask(
        grown(1), cluster, limit, objective, solver, gamma=gamma, flat=bool(given.get("flat", True)), turns=turns,
        keeps=keeps, limit_s=limit_s, precision=precision, pins=pins,
    )  # fmt: skip
    return Asked(source, cluster, ask, grown, stages)


def _cluster(given: Mapping[str, Any]) -> ClusterDescriptor:
    value = given.get("cluster")
    if value is None:
        hint = "a zoo name: what a GPU can do is the cluster's, also where a file gives the mesh"
        raise InputError(Problem("this option is missing", field="cluster", hint=hint))
    return loaded(value, given.get("changes"))


def _mesh(given: Mapping[str, Any], cluster: ClusterDescriptor | None) -> Callable[[int], Mesh]:
    """The mesh of a file, whose outermost level grows, or so many GPUs of the cluster."""
    gpus = _whole("gpus", given["gpus"]) if given.get("gpus") is not None else None
    if given.get("mesh") is not None:
        mesh = given["mesh"] if isinstance(given["mesh"], Mesh) else load_mesh(str(given["mesh"]))
        if gpus is not None and gpus != mesh.gpus:
            raise InputError(Problem("is not what the mesh has", field="gpus", got=str(gpus), need=str(mesh.gpus)))
        return lambda times: _outer(mesh, times)
    if gpus is None:
        raise InputError(Problem("this option is missing", field="gpus", hint="how many GPUs, or --mesh FILE.yaml"))
    if cluster is None:
        return lambda times: Mesh(())
    of_cluster(cluster, gpus)
    return lambda times: of_cluster(cluster, gpus * times)


def _outer(mesh: Mesh, times: int) -> Mesh:
    if times == 1 or not mesh.levels:
        return mesh
    last = mesh.levels[-1]
    return Mesh((*mesh.levels[:-1], replace(last, size=last.size * times)))


def _source(given: Mapping[str, Any]) -> Source:
    named = [name for name in ("model", "program", "module") if given.get(name) is not None]
    if len(named) != 1:
        got = " and ".join(named) or "none"
        need = "one of model, program and module"
        raise InputError(Problem("what is to be partitioned is given once", field="model", got=got, need=need))
    if named == ["model"]:
        return _model(given)
    if given.get("seq_length") is not None:
        raise InputError(Problem("a program states its own sizes", field="seq_length", got=str(given["seq_length"])))
    return _program(given) if named == ["program"] else _module(given)


def _model(given: Mapping[str, Any]) -> Source:
    from symconfig.graph.program.of_model import programs

    found, value = Problems(), given["model"]
    model = value if isinstance(value, ModelDescriptor) else found.collect(lambda: load_model(str(value)))
    batch = found.collect(lambda: _whole("global_batch_size", given.get("global_batch_size")))
    length = given.get("seq_length")
    asked_length = found.collect(lambda: _whole("seq_length", length)) if length is not None else None
    if found.all or model is None or batch is None:
        raise InputError(found.all)
    tokens = asked_length or min(model.max_position_embeddings, DEFAULT_SEQUENCE)
    of_batch = programs(model, tokens)
    make = cache(lambda turns: of_batch(batch // turns))
    return Source(model.name, make, {"the global batch": batch}, model, batch, tokens)


def _program(given: Mapping[str, Any]) -> Source:
    from symconfig.graph.program.read import load_program

    path, dims = given["program"], dict[str, int]()
    whole: Program = path if isinstance(path, Program) else load_program(path)
    if given.get("global_batch_size") is not None:
        if len(whole.batch) != 1:
            got = ", ".join(sorted(whole.batch)) or "none"
            need = "one dim that counts examples"
            raise InputError(
                Problem("the program cannot be told its batch", field="global_batch_size", got=got, need=need)
            )
        dims = {dim: _whole("global_batch_size", given["global_batch_size"]) for dim in whole.batch}
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


def _module(given: Mapping[str, Any]) -> Source:
    if given.get("global_batch_size") is not None:
        hint = "example inputs of another size, --num-microbatches for a step of several"
        raise InputError(Problem("a module runs on its example inputs", field="global_batch_size", hint=hint))
    from symconfig.graph.program.torch_source import load_module

    whole = load_module(str(given["module"]))
    return Source(whole.name, lambda turns: whole, module=str(given["module"]))


def _turns(given: Mapping[str, Any], source: Source | None, gpus: int, most: int) -> tuple[int, ...]:
    """At most so many, in rising order. Those that leave a size that is not whole are none."""
    wanted = _whole("num_microbatches", given["num_microbatches"]) if given.get("num_microbatches") is not None else 0
    if source is None or not source.counts:
        return (wanted or 1,)
    count = gcd(*source.counts.values())
    if not wanted:
        return tuple(turns for turns in thinned(divisors(count), count // gpus, most) if _whole_sizes(source, turns))
    batch = " and ".join(f"{name} of {size:,}" for name, size in source.counts.items())
    if count % wanted:
        able = (
            f"a divisor of {batch}" if len(source.counts) == 1 else f"{either(divisors(count))}, which divide {batch}"
        )
        raise InputError(Problem("does not divide the batch", field="num_microbatches", got=str(wanted), need=able))
    if not _whole_sizes(source, wanted):
        able = either([turns for turns in thinned(divisors(count), wanted) if _whole_sizes(source, turns)])
        what = "leaves a dim of the program that is not whole"
        raise InputError(Problem(what, field="num_microbatches", got=str(wanted), need=able))
    return (wanted,)


def _stages(value: Any, grown: Callable[[int], Mesh] | None, objective: Objective | None) -> tuple[int, int] | None:
    """The fewest and the most, at most one for each GPU."""
    if value is None:
        return None
    gpus = grown(1).gpus if grown is not None else MOST
    given = number_range(str(value))
    low, high = (max(given[0], 1), min(given[1], gpus)) if given is not None else (1, 0)
    if low > high:
        need = f"a number of stages or a range as 2..8, from 1 to the {gpus:,} GPUs"
        raise InputError(Problem("wrong value", field="stages", got=str(value), need=need))
    if objective is Objective.SYMTENSOR:
        raise InputError(Problem("a pipeline is a matter of seconds", field="stages", need="objective time"))
    return low, high


def _pins(
    value: Any, source: Source | None, turns: tuple[int, ...] | None, grown: Callable[[int], Mesh] | None, staged: bool
) -> tuple[Pin, ...]:
    """value: texts, or a mapping of what stands before their sign of equality to what stands behind it."""
    texts = [f"{name}={what}" for name, what in value.items()] if isinstance(value, Mapping) else list(value or ())
    if source is None or turns is None or grown is None or not texts:
        return ()
    nets = [net_of(source.programs, number) for number in turns]
    found = read(texts, nets[0], names_of(nets[0]))
    check(nets, found, submeshes(grown(1)) if staged else (grown(1),), FEW)
    return found


def _whole_sizes(source: Source, turns: int) -> bool:
    """Whether the program can be said with so many microbatches; as a whole it was read already."""
    try:
        source.programs(turns)
    except InputError:
        return False
    return True


def divisors(number: int) -> tuple[int, ...]:
    small = [factor for factor in range(1, isqrt(number) + 1) if number % factor == 0]
    return tuple(sorted({*small, *(number // factor for factor in small)}))


def thinned(rising: Sequence[int], kept: int, most: int = MOST_TURNS) -> tuple[int, ...]:
    """At most so many of them, the first and the last and as evenly between them as ratios go; always the largest that
    is not above `kept`."""
    if len(rising) <= most:
        return tuple(rising)
    chosen = {rising[0], rising[-1], max(one for one in rising if one <= max(kept, rising[0]))}
    while len(chosen) < most:  # the one that is farthest from all that are chosen
        chosen.add(max(rising, key=lambda one: min(abs(log(one / other)) for other in chosen)))
    return tuple(sorted(chosen))


def _recompute(given: Mapping[str, Any]) -> tuple[Keep, ...]:
    value = str(given.get("recompute") or "auto")
    if value not in RECOMPUTE:
        raise InputError(_unknown("recompute", value, tuple(RECOMPUTE)))
    return RECOMPUTE[value]


def _gamma(value: Any, objective: Objective | None) -> float | None:
    """None: adapted until the partition fits."""
    if value is None:
        return None
    try:
        gamma = float(value)
    except (TypeError, ValueError, OverflowError):
        gamma = float("nan")
    if not 0 < gamma < float("inf"):
        raise InputError(Problem("wrong value", field="gamma", got=str(value), need="a number above 0"))
    if objective is Objective.TIME:
        what = "only the objective symtensor has a gamma: seconds need no price of memory but its limit"
        raise InputError(Problem(what, field="gamma", got=str(value), hint="objective symtensor"))
    return gamma


def _precision(value: Any, cluster: ClusterDescriptor | None) -> Precision | None:
    """By default bf16, or fp16 where the GPU has no bf16."""
    wanted = str(value) if value is not None else "auto"
    if wanted in LOW_PRECISION:
        what = "the tensor solver prices matmuls in 16 bits: it knows neither casts nor scales"
        raise InputError(Problem(what, field="precision", got=wanted, hint=f"symconfig plan --pin precision={wanted}"))
    if wanted not in _PRECISIONS:
        raise InputError(_unknown("precision", wanted, _PRECISIONS))
    if cluster is None:
        return None
    able: list[Precision] = [name for name in WIDE if getattr(cluster.gpu.peak_flops, name) is not None]
    for name in able:
        if wanted in (name, "auto"):
            return name
    raise InputError(
        Problem(f"{cluster.gpu.product} has no {wanted}", field="precision", got=wanted, need=" or ".join(able))
    )


def _word(field: str, kind: type[Word], given: Mapping[str, Any]) -> Word:
    value = given.get(field)
    words = tuple(str(word) for word in kind)
    if value is None:
        return next(iter(kind))
    if str(value) not in words:
        raise InputError(_unknown(field, str(value), words))
    return kind(str(value))


def _unknown(field: str, got: str, words: Sequence[str]) -> Problem:
    return Problem("wrong value", field=field, got=got, need="one of " + ", ".join(words))


def _whole(field: str, value: Any) -> int:
    if value is None:
        raise InputError(Problem("this option is missing", field=field))
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise InputError(Problem("wrong value", field=field, got=text, need=f"a whole number from 1 to {MOST:,}"))
    return int(text)


def _limit(value: Any, cluster: ClusterDescriptor | None) -> float:
    """Bytes of tensors. By default what a plan may use of a GPU, less what its context and libraries take."""
    has = cluster.gpu.memory_bytes.value if cluster is not None else float("inf")
    if value is None:
        context = cluster.gpu.context_bytes.value if cluster is not None else 0.0
        return has * (1 - MARGIN) - context
    if isinstance(value, int | float) and not isinstance(value, bool):
        amount = float(min(value, 2 * MOST * GIB))  # more than that is no float
    else:
        match = _SIZE.fullmatch(str(value).strip())
        amount = _amount(match, has) if match is not None else float("nan")
    if not 0 < amount <= has:
        need = "GiB as 60 or 60GiB, or a share as 80%, above 0 and at most what the GPU has"
        got = f"{value}, of {has / GIB:.1f} GiB" if cluster is not None else str(value)
        raise InputError(Problem("wrong value", field="memory_limit", got=got, need=need))
    return amount


def _amount(match: re.Match[str], has: float) -> float:
    number, unit = float(match[1]), match[2].lower()
    return number / 100 * has if unit == "%" else number * _UNITS[unit]


def _span(value: Any) -> float:
    if value is None:
        return LIMIT_S
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = float("nan")
    if not 0 < seconds <= 86400:
        raise InputError(Problem("wrong value", field="timeout", got=str(value), need="seconds from above 0 to 86400"))
    return seconds
