"""What `symconfig.partition` and `symconfig partition` were asked: read, checked, all that is wrong at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from symconfig.api.graph_source import MOST, MOST_TURNS, Source, source_of, turns_of, unknown, whole_number
from symconfig.api.problems import Problems
from symconfig.cost.machine import LOW_PRECISION
from symconfig.cost.partition.costs import Keep, Objective
from symconfig.descriptor.amounts import SIZE, amount
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.cluster_name import joined
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import Mesh, load_mesh, of_cluster
from symconfig.errors import InputError
from symconfig.graph.program.program import Program
from symconfig.plans.configuration import Precision
from symconfig.report.partition import names_of
from symconfig.solve.partition.pinned import Pin, check, read
from symconfig.solve.partition.pipeline.stage import submeshes
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
    """Return the validated arguments of `symconfig.partition` or `pipeline`; numbers may be text. Raises InputError
    with all problems. Defaults: solver auto, objective time, recompute auto (all variants), limit_s LIMIT_S, flat True,
    no pipeline without `stages`. With `stages` half as many numbers of microbatches are tried.
    """
    problems = Problems()
    cluster = problems.collect(lambda: _cluster(given))
    grown = problems.collect(lambda: _mesh(given, cluster))
    source = problems.collect(lambda: source_of(given, cluster))
    tries = MOST_TURNS if given.get("stages") is None else MOST_TURNS // 2
    turns = problems.collect(lambda: turns_of(given, source, grown(1).gpus if grown is not None else 1, tries))
    solver = problems.collect(lambda: Solver(_word("solver", given.get("solver"), list(Solver), Solver.AUTO)))
    named = given.get("objective")
    objective = problems.collect(lambda: Objective(_word("objective", named, list(Objective), Objective.TIME)))
    keeps = problems.collect(lambda: RECOMPUTE[_word("recompute", given.get("recompute"), tuple(RECOMPUTE), "auto")])
    limit = problems.collect(lambda: _limit(given.get("memory_limit"), cluster))
    timeout = given.get("limit_s")
    span = "seconds from above 0 to 86400"
    limit_s = problems.collect(lambda: LIMIT_S if timeout is None else _number("timeout", timeout, 86400, span))
    gamma = problems.collect(lambda: _gamma(given.get("gamma"), objective))
    precision = problems.collect(lambda: _precision(given.get("precision"), cluster))
    stages = problems.collect(lambda: _stages(given.get("stages"), grown, objective))
    pins = problems.collect(lambda: _pins(given.get("pins"), source, turns, grown, stages is not None))
    if (
        cluster is None or grown is None or source is None or turns is None or solver is None or objective is None
        or keeps is None or limit is None or limit_s is None or precision is None or pins is None
        or problems.all
    ):  # fmt: skip
        raise InputError(problems.all)
    ask = Ask(
        grown(1), cluster, limit, objective, solver, gamma=gamma,
        flat=bool(given.get("flat", True)), turns=turns,
        keeps=keeps, limit_s=limit_s, precision=precision, pins=pins,
    )  # fmt: skip
    return PartitionJob(source, cluster, ask, grown, stages)


def _cluster(given: Mapping[str, Any]) -> ClusterDescriptor:
    """Return the cluster: a descriptor as given (`changes` are ignored), else loaded by name with `changes`. Raises
    InputError if it is missing or unknown.
    """
    value = given.get("cluster")
    if value is None:
        hint = "a zoo name: what a GPU can do is the cluster's, also where a file gives the mesh"
        raise InputError("this option is missing", field="cluster", hint=hint)
    if isinstance(value, ClusterDescriptor):
        return value
    return load_cluster(joined(str(value), given.get("changes") or {}))


def _mesh(given: Mapping[str, Any], cluster: ClusterDescriptor | None) -> Callable[[int], Mesh]:
    """Return a function from a factor to the mesh with that many times the GPUs. With `mesh` (object or file) its
    outermost level grows, and `gpus`, if given, must equal its GPUs; else it is the cluster's mesh of `gpus`. Without a
    cluster (already reported) always an empty mesh. Raises InputError if both are missing, they differ, or the cluster
    has no such mesh.
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
    """Return the mesh with its last (outermost) level `times` as large; itself for 1 or no levels."""
    if times == 1 or not mesh.levels:
        return mesh
    last = mesh.levels[-1]
    return Mesh((*mesh.levels[:-1], replace(last, size=last.size * times)))


def _stages(value: Any, grown: Callable[[int], Mesh] | None, objective: Objective | None) -> tuple[int, int] | None:
    """Return (fewest, most) stages of a number or a range as 2..8, clipped to 1 … GPUs (MOST if the mesh is unknown);
    None for None. Raises InputError if it is malformed, empty after clipping, or the objective is symtensor.
    """
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
    """Return the parsed pins; () without pins or if any of source, turns and grown is None. Raises InputError if one is
    malformed, names nothing in the graph or no level, or no number of microbatches and mesh shape (`staged`: of any
    submesh) allows it. value: texts `NAME=SPLIT`, a mapping of them, or None.
    """
    texts = [f"{name}={what}" for name, what in value.items()] if isinstance(value, Mapping) else list(value or ())
    if source is None or turns is None or grown is None or not texts:
        return ()
    nets = [net_of(source.programs, number) for number in turns]
    pins = read(texts, nets[0], names_of(nets[0]))
    check(nets, pins, submeshes(grown(1)) if staged else (grown(1),), FEW)
    return pins


def _gamma(value: Any, objective: Objective | None) -> float | None:
    """Return gamma as a number; None for None: then the solver adapts it until the partition fits. Raises InputError if
    the objective is time or it is not a finite number above 0.
    """
    if value is None:
        return None
    if objective is Objective.TIME:
        what = "only the objective symtensor has a gamma: seconds need no price of memory but its limit"
        raise InputError(what, field="gamma", got=str(value), hint="objective symtensor")
    return _number("gamma", value, float("inf"), "a number above 0")


def _number(field: str, value: Any, most: float, need: str) -> float:
    """Return a finite number above 0 and at most `most`. Raises InputError, with `need`, for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not 0 < number <= most or number == float("inf"):
        raise InputError("wrong value", field=field, got=str(value), need=need)
    return number


def _precision(value: Any, cluster: ClusterDescriptor | None) -> Precision | None:
    """Return bf16 or fp16: the one named if the GPU has it; for None or auto bf16, else fp16. None without a cluster.
    Raises InputError for an 8-bit or 4-bit precision, an unknown word, or one that the GPU has not.
    """
    if value in LOW_PRECISION:
        what = "the tensor solver prices matmuls in 16 bits: it knows neither casts nor scales"
        raise InputError(what, field="precision", got=str(value), hint=f"symconfig plan --pin precision={value}")
    wanted = _word("precision", value, ("auto", *WIDE), "auto")
    if cluster is None:
        return None
    able: list[Precision] = [name for name in WIDE if getattr(cluster.gpu.peak_flops, name) is not None]
    for name in able:
        if wanted in (name, "auto"):
            return name
    raise InputError(f"{cluster.gpu.product} has no {wanted}", field="precision", got=wanted, need=" or ".join(able))


def _word(field: str, value: Any, words: Sequence[str], default: str) -> str:
    """Return a value that is one of the words, or the default if it is None. Raises InputError."""
    if value is not None and str(value) not in words:
        raise InputError(unknown(field, str(value), words))
    return default if value is None else str(value)


def _limit(value: Any, cluster: ClusterDescriptor | None) -> float:
    """Return the bytes that tensors may take on a GPU; for None its memory less MARGIN (a share) and the context. A
    number is bytes; text is a share ("80%"), a size ("60GiB") or, without unit, GiB. Raises InputError unless above 0
    and at most the GPU's memory (infinite without a cluster).
    """
    has = cluster.gpu.memory_bytes.value if cluster is not None else float("inf")
    if value is None:
        context = cluster.gpu.context_bytes.value if cluster is not None else 0.0
        return has * (1 - MARGIN) - context
    text = str(value).strip()
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            limit = float(min(value, 2 * MOST * GIB))  # more than that is no float
        elif text.endswith("%"):
            limit = float(text[:-1]) / 100 * has
        else:
            limit = amount(f"{text}GiB" if text.replace(".", "", 1).isdigit() else text, SIZE)
    except ValueError:
        limit = float("nan")
    if not 0 < limit <= has:
        need = "GiB as 60 or 60GiB, or a share as 80%, above 0 and at most what the GPU has"
        got = f"{value}, of {has / GIB:.1f} GiB" if cluster is not None else str(value)
        raise InputError("wrong value", field="memory_limit", got=got, need=need)
    return limit
