"""A question to the tensor solver, checked as a whole: all problems at once, with their places in a job file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from symconfig.api.graph_source import MOST_TURNS, GraphJob, Source, once, source_of, turns_of
from symconfig.cost.partition.costs import Keep, Objective
from symconfig.descriptor.amounts import SIZE, amount
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import Document
from symconfig.descriptor.job import Limits
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import Mesh, load_mesh, of_cluster
from symconfig.descriptor.strict import problems as problems_of
from symconfig.errors import MISSING_FIELD, InputError, Problem, Problems
from symconfig.plans.configuration import Precision
from symconfig.report.partition import names_of
from symconfig.solve.partition.pinned import Pin, check, read
from symconfig.solve.partition.pipeline.stage import submeshes
from symconfig.solve.partition.run import FEW, Ask, net_of
from symconfig.solve.pins import number_range
from symconfig.units import GIB

RECOMPUTE: Mapping[str, tuple[Keep, ...]] = {
    "none": (Keep.USED, Keep.SHARDS),
    "full": (Keep.BORDERS,),
    "auto": tuple(Keep),
}


@dataclass(frozen=True, slots=True)
class PartitionJob:
    """A validated question to the tensor solver. grown: returns the mesh with that many times the GPUs. stages:
    (fewest, most) of a pipeline; None: no pipeline. rewrite: whether the graph may be rewritten.
    """

    source: Source
    cluster: ClusterDescriptor
    ask: Ask
    grown: Callable[[int], Mesh | None]
    stages: tuple[int, int] | None = None
    rewrite: bool = False

    @property
    def mesh(self) -> Mesh:
        return self.ask.mesh


def partition_job(given: Mapping[str, Any], file: Document | None = None) -> PartitionJob:
    """Return the validated job of these arguments, fields of GraphJob; None is as good as absent. Raises InputError
    with all problems, with the places of those that `file` has.
    """
    problems = Problems()
    document = replace(file or Document({}, file=""), data={k: v for k, v in given.items() if v is not None})
    graph = problems.collect(lambda: once(document.data))
    job = problems.collect(lambda: _checked(document))
    named = document.data.get("cluster")
    cluster = problems.read(lambda it: it if isinstance(it, ClusterDescriptor) else load_cluster(str(it)), named)
    limit = problems.collect(lambda: _limit(document.data.get("memory_limit"), cluster))
    if job is None or cluster is None:
        raise InputError(problems.all)
    grown = problems.collect(lambda: _mesh(job, cluster))
    source = problems.read(lambda _: source_of(job, cluster), graph)
    gpus = grown(1).gpus if grown is not None else 1
    tries = MOST_TURNS if job.stages is None else MOST_TURNS // 2
    turns = problems.read(lambda source: turns_of(job.num_microbatches, source, gpus, tries), source)
    if job.gamma is not None and job.objective is Objective.TIME:
        what = "only the objective symtensor has a gamma: seconds need no price of memory but its limit"
        problems.add(Problem(what, field="gamma", got=str(job.gamma), hint="objective symtensor"))
    as_given = {
        "pins": ("names operators of the graph as it is given", bool(job.pins)),
        "stages": ("cuts the graph as it is given", job.stages is not None),
        "objective": ("counts no computation, which rewrites save", job.objective is Objective.SYMTENSOR),
    }
    for name, (what, there) in as_given.items() if job.rewrite else ():
        if there:
            problems.add(Problem(what, field=name, need="no rewrite beside it"))
    precision = problems.collect(lambda: _precision(job, cluster))
    stages, pins = None, None
    if grown is not None:
        stages = problems.collect(lambda: _stages(job, gpus))
        if source is not None and turns is not None:
            pins = problems.collect(lambda: _read_pins(job.pins, source, turns, grown(1), job.stages is not None))
    need, meshes = problems.need, problems.need(grown)
    ask = Ask(
        meshes(1), cluster, need(limit), job.objective, job.solver, gamma=job.gamma, flat=job.flat, turns=need(turns),
        keeps=RECOMPUTE[job.recompute], limit_s=job.timeout, precision=need(precision), pins=need(pins),
    )  # fmt: skip
    return PartitionJob(need(source), cluster, ask, meshes, stages, job.rewrite)


def _checked(document: Document) -> GraphJob:
    try:
        return GraphJob.model_validate(document.data)
    except ValidationError as error:
        raise InputError([*document.unread, *problems_of(error, document, GraphJob)]) from None


def _mesh(job: GraphJob, cluster: ClusterDescriptor) -> Callable[[int], Mesh]:
    """Return a function from a factor to the mesh with that many times the GPUs: the job's own, whose outermost level
    grows, or the cluster's mesh of `gpus`. Raises InputError if both are missing or differ, or the cluster has no such
    mesh.
    """
    if job.mesh is not None:
        mesh = job.mesh if isinstance(job.mesh, Mesh) else load_mesh(job.mesh)
        if job.gpus not in (None, mesh.gpus):
            raise InputError("is not what the mesh has", field="gpus", got=str(job.gpus), need=str(mesh.gpus))
        return lambda times: _outer(mesh, times)
    if job.gpus is None:
        raise InputError(MISSING_FIELD, field="gpus", hint="how many GPUs, or --mesh FILE.yaml")
    gpus = job.gpus
    of_cluster(cluster, gpus)
    return lambda times: of_cluster(cluster, gpus * times)


def _outer(mesh: Mesh, times: int) -> Mesh:
    """Return the mesh with its last (outermost) level `times` as large; itself for 1 or no levels."""
    if times == 1 or not mesh.levels:
        return mesh
    last = mesh.levels[-1]
    return Mesh((*mesh.levels[:-1], replace(last, size=last.size * times)))


def _stages(job: GraphJob, gpus: int) -> tuple[int, int] | None:
    """Return (fewest, most) stages, clipped to 1 … GPUs; None without any. Raises InputError if `stages` is malformed,
    empty after clipping, or the objective is symtensor.
    """
    if job.stages is None:
        return None
    given = number_range(job.stages)
    low, high = (max(given[0], 1), min(given[1], gpus)) if given is not None else (1, 0)
    if low > high:
        need = f"a number of stages or a range as 2..8, from 1 to the {gpus:,} GPUs"
        raise InputError("wrong value", field="stages", got=job.stages, need=need)
    if job.objective is Objective.SYMTENSOR:
        raise InputError("a pipeline is a matter of seconds", field="stages", need="objective time")
    return low, high


def _read_pins(
    texts: tuple[str, ...], source: Source, turns: tuple[int, ...], mesh: Mesh, staged: bool
) -> tuple[Pin, ...]:
    """Return the parsed pins. Raises InputError if one is malformed, names nothing in the graph or no level, or if
    pins, each alone or all of a node together, leave the node no row at any number of microbatches and mesh shape
    (`staged`: of any submesh).
    """
    if not texts:
        return ()
    nets = [net_of(source.programs, number) for number in turns]
    pins = read(texts, nets[0], names_of(nets[0]))
    check(nets, pins, submeshes(mesh) if staged else (mesh,), FEW)
    return pins


def _precision(job: GraphJob, cluster: ClusterDescriptor) -> Precision:
    """Return bf16 or fp16: the one named if the GPU has it; for auto bf16, else fp16. Raises InputError."""
    wide: tuple[Precision, ...] = ("bf16", "fp16")
    able = [name for name in wide if getattr(cluster.gpu.peak_flops, name) is not None]
    for name in able:
        if job.precision in (name, "auto"):
            return name
    what = f"{cluster.gpu.product} has no {job.precision}"
    raise InputError(what, field="precision", got=job.precision, need=" or ".join(able))


def _limit(value: Any, cluster: ClusterDescriptor | None) -> float:
    """Return the bytes that tensors may take on a GPU; for None its memory less a plan's margin and the context. A
    number is bytes; text is a share ("80%"), a size ("60GiB") or, without unit, GiB. Raises InputError unless above 0
    and at most the GPU's memory (infinite without a cluster).
    """
    has = cluster.gpu.memory_bytes.value if cluster is not None else float("inf")
    if value is None:
        context = cluster.gpu.context_bytes.value if cluster is not None else 0.0
        return Limits().usable_bytes(has) - context
    text = str(value).strip()
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            limit = float(min(value, 2e9 * GIB))  # more than that is no float
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
