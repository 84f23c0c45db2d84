"""One layout, priced as it is: every choice that its pins leave open is the framework's plain one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast

import numpy as np

from symconfig.cost.framework import reserved_bytes
from symconfig.cost.stages import Offload
from symconfig.cost.table import Choice
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import PIN_NAMES, Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem
from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.extras import gradient_bytes, put_on
from symconfig.frameworks.known import BACKENDS
from symconfig.graph.scheme import CpComm
from symconfig.install import VERSION
from symconfig.plans.configuration import EXTRAS, ZERO_STAGES
from symconfig.plans.pipeline_layout import expanded
from symconfig.plans.plan import Candidate, Plan, Search
from symconfig.solve.candidate import described
from symconfig.solve.costed import costed
from symconfig.solve.pieces import WHOLE
from symconfig.solve.pins import ENDS, Pins, parse
from symconfig.solve.predict import as_found
from symconfig.solve.prospect import Prospect, Setup, effective, recomputing
from symconfig.solve.run import precisions, space, usual_of

_MESH = ("tp", "pp", "cp")
_RECOMPUTED = {"none": frozenset[str](), "selective": frozenset({"core_attn"}), "full": WHOLE.modules}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The cost of one layout. plan: has it as its best and only candidate.

    memory: bytes in use on each stage's GPUs, by part. refused: sentences on the constraints of its framework that it
    violates.
    """

    plan: Plan
    memory: Mapping[str, tuple[float, ...]]
    refused: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.missing_bytes <= 0

    @property
    def missing_bytes(self) -> float:
        """Return the bytes by which the fullest stage exceeds usable GPU memory; negative if some are left."""
        return self.plan.device_bytes - self.plan.usable_bytes

    @property
    def stage_bytes(self) -> tuple[float, ...]:
        """Return the bytes in use on each stage's GPUs, in order of stages."""
        return tuple(map(sum, zip(*self.memory.values(), strict=True)))

    @property
    def overfull(self) -> tuple[int, ...]:
        """Return the indices of the stages that exceed usable GPU memory; empty if all fit."""
        return tuple(stage for stage, used in enumerate(self.stage_bytes) if used > self.plan.usable_bytes)

    @property
    def largest(self) -> tuple[str, float]:
        """Return (name, bytes) of the largest part of the fullest stage's memory."""
        return max(self.plan.best.predicted.memory.items(), key=lambda part: part[1])


def estimate(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> Estimate:
    """Return what the layout of a job's pins costs, without a search; whether it fits is not checked.

    Constraints of the framework that the layout fails are recorded in `refused`, but InputError is raised for those on
    divisibility. Also raises InputError if the pins leave more than one layout or do not make all GPUs, and what
    `resolved` raises.
    """
    from symconfig.solve.search import resolved  # takes as long to import as an audit, which prices here, to do

    job = resolved(model, cluster, job)
    prospect = as_found(model, cluster, configuration(model, cluster, job), job)
    prospect = replace(prospect, configuration=effective(prospect.configuration, prospect.request))
    failed, (fixed, at) = prospect.refused(), (prospect.request.limits.fixed, prospect.columns().at(0))
    if wrong := [Problem(one.sentence_at(fixed, at), field=_field(one, job)) for one in failed if one.divides]:
        raise InputError(wrong)
    plan, memory = priced(prospect, cluster, job)
    return Estimate(plan=plan, memory=memory, refused=tuple(one.sentence_at(fixed, at) for one in failed))


def _field(failed: Constraint, job: Job) -> str:
    """Return the pin, or other field of a job, that a failed constraint is reported at: the one that it is about, or
    the first of its pins that the job has."""
    name = next((pin for pin in (failed.about, *failed.pins) if pin in job.pins), failed.about)
    return f"pins.{name}" if name in PIN_NAMES else name


def priced(
    prospect: Prospect, cluster: ClusterDescriptor, job: Job, **known: Any
) -> tuple[Plan, dict[str, tuple[float, ...]]]:
    """Return (plan, memory) of one candidate without a search, with even expert loads.

    memory: bytes of each stage's GPUs by part, allocator and context included. known: fields of the plan's candidate to
    replace. The plan has no alternatives; it may not fit, then its search counts no feasible candidate.
    """
    best: Candidate = replace(described(prospect, cluster, job, best=True), **known)
    fits = best.predicted.device_bytes <= job.limits.usable_bytes(cluster.gpu.memory_bytes.value)
    plan = Plan(
        prospect.request.model, cluster, job, best, (), Search(1, fits, 0.0, False), "nothing was searched", VERSION
    )
    parts = costed(prospect.even)
    needed = np.array(parts.peaks)
    memory = {name: np.broadcast_to(part, (len(needed), 1, 1, 1)) for name, part in parts.cost.memory.items()}
    memory["allocator"] = reserved_bytes(needed, prospect.request.framework) - needed
    memory["context and libraries"] = np.full(len(needed), prospect.machine.context_bytes)
    return plan, {name: tuple(map(float, np.ravel(part))) for name, part in memory.items()}


def with_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a job's fields with defaults for `gpus` and `global_batch_size`; given fields win.

    gpus: tp x pp x cp x dp of the pins, only if dp is pinned. global_batch_size: replicas x mbs x pp, with one replica
    if `gpus` is no int. Degrees not pinned count as 1, as do all if `pins` is no mapping. Raises InputError for wrong
    pins or ranges.
    """
    given, named = dict(fields), fields.get("pins")
    pins = parse({name: str(value) for name, value in named.items()} if isinstance(named, Mapping) else {})
    ranks = prod(_one(pins, name) for name in _MESH)
    if "gpus" not in given and "dp" in pins.ranges:
        given["gpus"] = ranks * _one(pins, "dp")
    gpus = given.get("gpus")
    replicas = max(1, gpus // ranks) if isinstance(gpus, int) else 1
    return {"global_batch_size": replicas * _one(pins, "mbs") * _one(pins, "pp"), **given}


def configuration(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> Setup:
    """Return the layout of a resolved job's pins; degrees not pinned are 1, options as the framework has them.

    dp is gpus / (tp x pp x cp); a layout string sets vpp. Not pinned, sequence parallelism is on with tp > 1 if the
    target runs it, and the ZeRO stage is the first that it runs of 1, 0, 2, 3. At tp 1 sequence parallelism is off even
    if pinned. Raises InputError if `gpus` is auto or layout is "ends", a pin is a range, or the degrees do not make all
    GPUs.
    """
    pins = parse(job.pins)
    if job.gpus == "auto" or pins.dealt == ENDS:
        field, got = ("gpus", "auto") if job.gpus == "auto" else ("pins.layout", ENDS)
        raise InputError("an estimate is of one layout", field=field, got=got, need="what it is in that layout")
    # A layout is priced whether or not the target's program can be told it.
    gpus, limits = job.gpus, space(model, cluster, job.model_copy(update={"target": None}))
    tp, pp, cp = (_one(pins, name) for name in _MESH)
    vpp = len(expanded(pins.layout)) // pp if pins.layout else _one(pins, "vpp")
    dp = max(1, gpus // (tp * pp * cp))
    if tp * pp * cp * dp != gpus or not pins.allows("dp", dp):
        got = ", ".join(f"{name}={job.pins[name]}" for name in (*_MESH, "dp") if name in job.pins)
        raise InputError(
            f"the degrees do not multiply to {gpus} GPUs", field="pins", got=got, need=f"tp x pp x cp x dp = {gpus}"
        )
    stages = (stage for stage in (1, 0, *ZERO_STAGES[2:]) if pins.allows("zero", stage))
    precision = precisions(cluster, job)[0]
    kind, _, modules = pins.words.get("recompute", "none").partition(":")
    framework = usual_of(cluster, job, precision)
    named: dict[str, Any] = {
        extra.name: extra.values[pins.words[extra.pin]] if extra.values else _one(pins, extra.pin)
        for extra in EXTRAS
        if pins.fixes(extra.pin)
    }
    parallel = pins.switch("sp")
    zero = next((stage for stage in stages if limits.runs(zero_stage=stage, dp=dp, cp=cp)), limits.zero[-1])
    offload = Offload(pins.fraction or 0.0)
    offload = next(iter(limits.offloads_of(zero, offload.optimizer)), offload)
    again = frozenset(modules.split(",")) if modules else _RECOMPUTED[kind]
    plain = Setup(
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        ep=_one(pins, "ep"),
        etp=_one(pins, "etp"),
        dp=dp,
        micro=_one(pins, "mbs"),
        global_batch=job.global_batch_size,
        seq_length=int(job.seq_length or 0),
        precision=precision,
        sequence_parallel=tp > 1 and (limits.runs(sequence_parallel=True) if parallel is None else parallel),
        cp_comm=cast(CpComm, pins.words.get("cp_comm", "p2p")),
        **recomputing(Choice(again)) | {"activation_offload": bool(pins.switch("activation_offload"))},
        zero_stage=zero,
        grad_bytes=gradient_bytes(framework),
        framework=framework,
        packing=job.packing,
        pipeline_layout=pins.layout,
        optimizer_offload=offload.optimizer,
        param_offload=offload.weights,
        backend=job.backend,
        version=BACKENDS[job.backend].releases.of(job),
    )
    wanted = replace(plain, **named)
    return replace(wanted, framework=put_on(framework, cluster.gpu.architecture, wanted, plain))


def _one(pins: Pins, name: str) -> int:
    """Return the value that a degree is pinned to; 1 if it is not pinned. Raises InputError for a range."""
    low, high = pins.ranges.get(name, (1, 1))
    if low != high:
        raise InputError("an estimate is of one layout", field=f"pins.{name}", got=f"{low}..{high}", need="one value")
    return low
