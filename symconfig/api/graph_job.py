"""What `symconfig.partition` and `symconfig partition` were asked: read, checked, all that is wrong at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from symconfig.api.graph_source import MOST, MOST_TURNS, Source, source_of, turns_of, unknown, whole_number
from symconfig.api.problems import Problems
from symconfig.cost.machine import LOW_PRECISION
from symconfig.cost.partition.costs import Keep, Objective
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.cluster_name import joined
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import NETWORK, Mesh
from symconfig.descriptor.mesh_source import load_mesh, of_cluster
from symconfig.errors import InputError
from symconfig.graph.program.program import Program
from symconfig.plans.choices import Precision
from symconfig.report.partition_contents import names_of
from symconfig.solve.partition.pinned import Pin, check, read
from symconfig.solve.partition.pipeline.submeshes import submeshes
from symconfig.solve.partition.run import FEW, Ask, Solver, net_of
from symconfig.solve.pins import number_range
from symconfig.units import GIB

MARGIN = 0.04  # of the GPU's memory, as `symconfig plan` leaves free
LIMIT_S = 10.0  # of the exact solver
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


class GraphFields(TypedDict, total=False):
    """What `symconfig.partition` and `symconfig.pipeline` take by name, as the options of `symconfig partition` do.

    None is as good as absent. pins: as {"layers.*.up_proj": "batch/2, ffn/4"}, or texts with a sign of equality.
    memory_limit: bytes of tensors on a GPU, or text as `60GiB` or `80%`. limit_s: of the exact solver."""

    program: str | Path | Program | None
    module: str | None
    mesh: str | Path | Mesh | None
    solver: str | None
    memory_limit: str | float | None
    flat: bool
    num_microbatches: int | None
    recompute: str | None
    limit_s: float | None
    precision: str | None
    attention: str | None
    pins: Mapping[str, str | int] | Sequence[str]


@dataclass(frozen=True, slots=True)
class PartitionJob:
    """A validated question to the tensor solver. grown: returns the mesh with that many times the GPUs. stages:
    (fewest, most) of a pipeline; None: no pipeline.
    """

    source: Source
    cluster: ClusterDescriptor
    ask: Ask
    grown: Callable[[int], Mesh | None]
    stages: tuple[int, int] | None = None

    @property
    def mesh(self) -> Mesh:
        return self.ask.mesh


def partition_job(given: Mapping[str, Any]) -> PartitionJob:
    """Return the validated arguments of `symconfig.partition`; numbers may be text. Raises InputError with all
    problems.
    """
    problems = Problems()
    cluster = problems.collect(lambda: _cluster(given))
    grown = problems.collect(lambda: _mesh(given, cluster))
    source = problems.collect(lambda: source_of(given, cluster))
    tries = MOST_TURNS if given.get("stages") is None else MOST_TURNS // 2
    turns = problems.collect(lambda: turns_of(given, source, grown(1).gpus if grown is not None else 1, tries))
    solver = problems.collect(lambda: _word("solver", Solver, given))
    objective = problems.collect(lambda: _word("objective", Objective, given))
    keeps = problems.collect(lambda: _recompute(given))
    limit = problems.collect(lambda: _limit(given.get("memory_limit"), cluster))
    limit_s = problems.collect(lambda: _span(given.get("limit_s")))
    gamma = problems.collect(lambda: _gamma(given.get("gamma"), objective, grown))
    precision = problems.collect(lambda: _precision(given.get("precision"), cluster))
    stages = problems.collect(lambda: _stages(given.get("stages"), grown, objective))
    pins = problems.collect(lambda: _pins(given.get("pins"), source, turns, grown, stages is not None))
    if (
        cluster is None or grown is None or source is None or turns is None or solver is None or objective is None
        or keeps is None or limit is None or limit_s is None or precision is None or pins is None or gamma is None
        or problems.all
    ):  # fmt: skip
        raise InputError(problems.all)
    ask = Ask(
        grown(1), cluster, limit, objective, solver, gamma=gamma[0], weights=gamma[1],
        flat=bool(given.get("flat", True)), turns=turns,
        keeps=keeps, limit_s=limit_s, precision=precision, pins=pins,
    )  # fmt: skip
    return PartitionJob(source, cluster, ask, grown, stages)


def _cluster(given: Mapping[str, Any]) -> ClusterDescriptor:
    value = given.get("cluster")
    if value is None:
        hint = "a zoo name: what a GPU can do is the cluster's, also where a file gives the mesh"
        raise InputError("this option is missing", field="cluster", hint=hint)
    if isinstance(value, ClusterDescriptor):
        return value
    return load_cluster(joined(str(value), given.get("changes") or {}))


def _mesh(given: Mapping[str, Any], cluster: ClusterDescriptor | None) -> Callable[[int], Mesh]:
    """Return a function from a factor to the mesh with that many times the GPUs: a file's with its outermost level
    grown, or the cluster's.

    Raises InputError if `gpus` is missing or contradicts the mesh.
    """
    gpus = whole_number("gpus", given["gpus"]) if given.get("gpus") is not None else None
    if given.get("mesh") is not None:
        mesh = given["mesh"] if isinstance(given["mesh"], Mesh) else load_mesh(str(given["mesh"]))
        if gpus is not None and gpus != mesh.gpus:
            raise InputError("is not what the mesh has", field="gpus", got=str(gpus), need=str(mesh.gpus))
        return lambda times: _outer(mesh, times)
    if gpus is None:
        raise InputError("this option is missing", field="gpus", hint="how many GPUs, or --mesh FILE.yaml")
    if cluster is None:
        return lambda times: Mesh(())
    of_cluster(cluster, gpus)
    return lambda times: of_cluster(cluster, gpus * times)


def _outer(mesh: Mesh, times: int) -> Mesh:
    if times == 1 or not mesh.levels:
        return mesh
    last = mesh.levels[-1]
    return Mesh((*mesh.levels[:-1], replace(last, size=last.size * times)))


def _stages(value: Any, grown: Callable[[int], Mesh] | None, objective: Objective | None) -> tuple[int, int] | None:
    """Return (fewest, most) stages, at most one per GPU; None without stages. Raises InputError."""
    if value is None:
        return None
    gpus = grown(1).gpus if grown is not None else MOST
    given = number_range(str(value))
    low, high = (max(given[0], 1), min(given[1], gpus)) if given is not None else (1, 0)
    if low > high:
        need = f"a number of stages or a range as 2..8, from 1 to the {gpus:,} GPUs"
        raise InputError("wrong value", field="stages", got=str(value), need=need)
    if objective is Objective.SYMTENSOR:
        raise InputError("a pipeline is a matter of seconds", field="stages", need="objective time")
    return low, high


def _pins(
    value: Any, source: Source | None, turns: tuple[int, ...] | None, grown: Callable[[int], Mesh] | None, staged: bool
) -> tuple[Pin, ...]:
    """Return the parsed pins, checked against the graph and mesh; () without pins or if an input is invalid. Raises
    InputError.

    value: texts `NAME=SPLIT`, or a mapping.
    """
    texts = [f"{name}={what}" for name, what in value.items()] if isinstance(value, Mapping) else list(value or ())
    if source is None or turns is None or grown is None or not texts:
        return ()
    nets = [net_of(source.programs, number) for number in turns]
    pins = read(texts, nets[0], names_of(nets[0]))
    check(nets, pins, submeshes(grown(1)) if staged else (grown(1),), FEW)
    return pins


def _recompute(given: Mapping[str, Any]) -> tuple[Keep, ...]:
    value = str(given.get("recompute") or "auto")
    if value not in RECOMPUTE:
        raise InputError(unknown("recompute", value, tuple(RECOMPUTE)))
    return RECOMPUTE[value]


def _gamma(
    value: Any, objective: Objective | None, grown: Callable[[int], Mesh] | None
) -> tuple[float | None, Mapping[str, float]]:
    """Return (gamma of the innermost level, relative weights of other levels): `8`, `node=8,network=64`, `8,rail=64` or
    a mapping.

    (None, {}) without a gamma: it is adapted until the partition fits. Raises InputError.
    """
    if value is None:
        return None, {}
    if objective is Objective.TIME:
        what = "only the objective symtensor has a gamma: seconds need no price of memory but its limit"
        raise InputError(what, field="gamma", got=str(value), hint="objective symtensor")
    texts = value.items() if isinstance(value, Mapping) else (_named(text) for text in str(value).split(","))
    stated = {name: _positive(one, str(value)) for name, one in texts}
    levels = [level.name for level in grown(1).levels] if grown is not None else []
    known = {*levels, *(_group(level) for level in levels), ""}
    if grown is not None and not stated.keys() <= known:
        strange = ", ".join(name for name in stated if name not in known)
        need = "one of " + ", ".join(sorted(known - {""}, key=lambda name: (name not in levels, name)))
        raise InputError("there is no such level", field="gamma", got=strange, need=need)
    by_level = [stated.get(level, stated.get(_group(level), stated.get(""))) for level in levels]
    if None in by_level:
        missing = levels[by_level.index(None)]
        raise InputError("every level needs a gamma", field="gamma", got=str(value), need=f"one of {missing}")
    gammas = [gamma for gamma in by_level if gamma is not None] or [next(iter(stated.values()))]
    weights = {level: gamma / gammas[0] for level, gamma in zip(levels, gammas, strict=False) if gamma != gammas[0]}
    return gammas[0], weights


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    return (name.strip(), value) if equals else ("", text)


def _group(level: str) -> str:
    return "network" if level in NETWORK else "node"


def _positive(value: Any, got: str) -> float:
    """Return a finite number above 0; got: the text shown in the InputError."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not 0 < number < float("inf"):
        need = "a number above 0, or one for each level as node=8,network=64"
        raise InputError("wrong value", field="gamma", got=got, need=need)
    return number


def _precision(value: Any, cluster: ClusterDescriptor | None) -> Precision | None:
    """Return the precision: by default bf16, or fp16 if the GPU has no bf16; None without a cluster. Raises
    InputError.
    """
    wanted = str(value) if value is not None else "auto"
    if wanted in LOW_PRECISION:
        what = "the tensor solver prices matmuls in 16 bits: it knows neither casts nor scales"
        raise InputError(what, field="precision", got=wanted, hint=f"symconfig plan --pin precision={wanted}")
    if wanted not in _PRECISIONS:
        raise InputError(unknown("precision", wanted, _PRECISIONS))
    if cluster is None:
        return None
    able: list[Precision] = [name for name in WIDE if getattr(cluster.gpu.peak_flops, name) is not None]
    for name in able:
        if wanted in (name, "auto"):
            return name
    raise InputError(f"{cluster.gpu.product} has no {wanted}", field="precision", got=wanted, need=" or ".join(able))


def _word(field: str, kind: type[Word], given: Mapping[str, Any]) -> Word:
    """Return a value as a member of an enumeration; its first member if missing. Raises InputError."""
    value = given.get(field)
    words = tuple(str(word) for word in kind)
    if value is None:
        return next(iter(kind))
    if str(value) not in words:
        raise InputError(unknown(field, str(value), words))
    return kind(str(value))


def _limit(value: Any, cluster: ClusterDescriptor | None) -> float:
    """Return the memory limit of a GPU's tensors in bytes; by default the memory less MARGIN and the context. Raises
    InputError.
    """
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
        raise InputError("wrong value", field="memory_limit", got=got, need=need)
    return amount


def _amount(match: re.Match[str], has: float) -> float:
    number, unit = float(match[1]), match[2].lower()
    return number / 100 * has if unit == "%" else number * _UNITS[unit]


def _span(value: Any) -> float:
    """Return the solver's time limit in seconds; LIMIT_S by default. Raises InputError."""
    if value is None:
        return LIMIT_S
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = float("nan")
    if not 0 < seconds <= 86400:
        raise InputError("wrong value", field="timeout", got=str(value), need="seconds from above 0 to 86400")
    return seconds
