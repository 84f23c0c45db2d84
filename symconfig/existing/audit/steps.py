"""The way from a run to a better plan, one change after the other, each with what it gains by itself.

The order is greedy: of the changes that are left, the one that is fastest next, as soon as something fits; until then
the one that comes closest to fitting. Changes that only run together are made together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from math import isclose
from operator import attrgetter
from typing import Any

from symconfig.cost.framework import Framework, device_bytes
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.errors import InputError
from symconfig.existing.audit.judge import Judged
from symconfig.existing.recover.run import Run
from symconfig.format import percent, picked
from symconfig.frameworks.behaviour import changed, usual
from symconfig.frameworks.extras import in_effect, put_on
from symconfig.frameworks.known import BACKENDS
from symconfig.graph.implementation import Dispatch
from symconfig.plans.configuration import FIELDS
from symconfig.plans.plan import Plan
from symconfig.schedule.timeline import Start
from symconfig.solve.costed import costed, refined_s
from symconfig.solve.predict import as_found
from symconfig.solve.prospect import Setup
from symconfig.solve.search import search

_EVEN: Mapping[str, Any] = {
    **dict.fromkeys(("pipeline_layout", "first_stage_layers", "last_stage_layers")),
    **dict.fromkeys(("account_for_embedding", "account_for_loss"), False),
}
# Fields of a configuration that are one decision, in the order in which ties are broken.
DECISIONS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp",),
    "weight shards": ("gtp",),
    "stages": ("pp", "vpp", *_EVEN),
    "cp": ("cp", "cp_comm"),
    "experts": ("ep", "etp"),
    "micro-batch": ("micro",),
    "sequence parallel": ("sequence_parallel",),
    "zero": ("zero_stage", "optimizer_offload", "param_offload"),
    "recompute": ("recompute", "recompute_modules", "recompute_method", "recompute_layers", "activation_offload"),
    "overlap": ("framework",),
    "precision": ("precision",),
}
# What the behaviour of a framework says, too.
WITH_FRAMEWORK = [
    *(name for name in FIELDS if name.startswith(("overlap_", "moe_"))),
    *("microbatch_group_size", "grad_bytes", "cuda_graphs", "fp8_param_gather", "fused_loss", "instances"),
    *("expert_capacity", "paged_stash", "fp8_attention"),
]
MOST_TOGETHER = 3  # decisions that are tried as one step before all that is left is


@dataclass(frozen=True, slots=True)
class State:
    """A configuration on the way to the better plan.

    changes: what changed since the one before, in words. step_s: predicted seconds. device_bytes: of the fullest GPU.
    gain: share of the previous step time that is saved, below 0 if it is slower.
    """

    changes: tuple[str, ...]
    step_s: float
    device_bytes: float
    fits: bool
    gain: float = 0.0


def steps(judged: Judged, better: Plan) -> tuple[State, ...]:
    """Return the states on the way from the run to the best candidate of `best`'s plan; () if they do not differ."""
    framework = willing(judged.run.configuration.framework, better.cluster.gpu.architecture)
    if BACKENDS[better.best.target.backend].options:
        had, wanted = judged.run.configuration, in_effect(better.best.configuration)
        framework = put_on(framework, better.cluster.gpu.architecture, wanted, had)
    now = judged.run.configuration
    target = Setup.of(better.best, framework)
    predicted = judged.plan.best.predicted
    here, done = State((), predicted.step_s, predicted.device_bytes, judged.fits), []
    while left := [name for name in DECISIONS if differs(name, now, target)]:
        names, reached = _next(judged, better, now, target, left, here)
        now = moved(now, target, names)
        here = replace(reached, gain=1 - reached.step_s / here.step_s)
        done.append(here)
    return tuple(done)


def _next(
    judged: Judged, better: Plan, now: Setup, target: Setup, left: list[str], here: State
) -> tuple[tuple[str, ...], State]:
    """Return the decisions to change next, and the state after them.

    Single decisions; pairs, then threes, only if none before can run and changes time or memory. Of these the fastest
    that fits, else the one with the least memory; if there are none, all that are left, with the plan's own prediction.
    """
    for count in range(1, min(MOST_TOGETHER, len(left) - 1) + 1):
        tried = []
        for names in combinations(left, count):
            then = moved(now, target, names)
            state = _state(judged, better, then, changes(now, then))
            if state is not None and not (
                isclose(state.step_s, here.step_s, rel_tol=1e-6)
                and isclose(state.device_bytes, here.device_bytes, rel_tol=1e-6)
            ):
                tried.append((names, state))
        if tried:  # what fits by its time, what does not by its memory
            return min(tried, key=lambda one: (not one[1].fits, one[1].step_s if one[1].fits else one[1].device_bytes))
    predicted = better.best.predicted
    return tuple(left), State(changes(now, target), predicted.step_s, predicted.device_bytes, True)


def _state(judged: Judged, better: Plan, then: Setup, decisions: tuple[str, ...]) -> State | None:
    """Return the state with predicted time and memory, its gain 0; None if it cannot run. decisions: in words."""
    if then.world_size != judged.plan.best.configuration.world_size:
        return None
    try:
        cost = as_found(judged.plan.model, better.cluster, then, judged.plan.job)
    except InputError:
        return None
    if cost.refused():
        return None
    parts = costed(cost)
    used = device_bytes(max(parts.peaks), cost.machine, then.framework)
    return State(decisions, refined_s(cost, parts), used, used <= judged.plan.usable_bytes)


def differs(name: str, one: Setup, other: Setup) -> bool:
    """Return whether the configurations differ in a field of this decision (a key of `DECISIONS`).

    Fields that have no effect at a configuration's degrees do not count.
    """
    mine, theirs = _normalised(one), _normalised(other)
    return any(getattr(mine, field) != getattr(theirs, field) for field in DECISIONS[name])


def _normalised(c: Setup) -> Setup:
    """Return the configuration with fields that have no effect at its degrees reset (vpp to 1 at pp 1), to compare."""
    framework = c.framework
    if c.pp == 1:
        c = replace(c, vpp=1, **_EVEN)
    alone, in_turn = c.dp * c.cp == 1, c.pp > 1 and c.vpp == 1
    if c.zero_stage == 0 or alone or (framework.gathers is Start.ON_DEMAND and not in_turn):
        framework = replace(framework, gathers=Start.AHEAD)
    if alone:
        framework = replace(framework, hide=replace(framework.hide, data=0.0))
    if c.vpp == 1:
        framework = replace(framework, hide=replace(framework.hide, pp=0.0), microbatch_group=0)
    return replace(
        c,
        framework=framework,
        sequence_parallel=c.sequence_parallel and c.tp > 1,
        cp_comm=c.cp_comm if c.cp > 1 else "p2p",
    )


def moved(now: Setup, target: Setup, names: tuple[str, ...]) -> Setup:
    """Return the configuration with the fields of the named decisions as in the target.

    dp becomes what the number of GPUs leaves; with tp 1 sequence parallelism is off.
    """
    named = [field for name in names for field in DECISIONS[name]]
    named += WITH_FRAMEWORK if "framework" in named else ()
    then = replace(now, **picked(target, *named))
    if "tp" in names and then.tp == 1:
        then = replace(then, sequence_parallel=False)
    return replace(then, dp=max(1, now.world_size // (then.tp * then.pp * then.cp)))


def _extra(name: str) -> Callable[[Setup], object]:
    return lambda c: getattr(c, name) or ("alltoall" if name == "moe_flex_backend" else False)


# What changes are named by: each with its value, by which two configurations differ. A degree of 1 makes some idle.
_NAMED: tuple[tuple[str, Callable[[Setup], object]], ...] = (
    *((name, attrgetter(name)) for name in ("tp", "gtp", "pp", "vpp", "cp", "ep", "etp")),
    ("micro-batch", attrgetter("micro")),
    ("zero", attrgetter("zero_stage")),
    ("stages", lambda c: c.stage_layout or "equal"),
    ("context-parallel exchange", attrgetter("cp_comm")),
    ("sequence parallelism", attrgetter("sequence_parallel")),
    ("recompute", lambda c: _recompute(c)),
    ("precision", attrgetter("precision")),
    ("activation offload", attrgetter("activation_offload")),
    ("optimizer offload", lambda c: percent(c.optimizer_offload)),
    ("overlapped gradient reduction", lambda c: bool(c.framework.hide.data)),
    ("overlapped weight gather", lambda c: bool(c.framework.hide.data) and c.framework.gathers is not Start.APART),
    ("overlapped pipeline messages", lambda c: bool(c.framework.hide.pp)),
    ("overlapped all-to-all of experts", lambda c: bool(c.framework.hide.experts)),
    ("user buffers", _extra("overlap_tp_comm")),
    ("dispatcher", _extra("moe_flex_backend")),
    ("CUDA graphs", _extra("cuda_graphs")),
    ("bytes of a gradient", _extra("grad_bytes")),
    ("weights in 8 bits", _extra("fp8_param_gather")),
    ("fused loss", _extra("fused_loss")),
    ("expert capacity per rank", _extra("expert_capacity")),
    ("paged stash", _extra("paged_stash")),
    ("fp8 attention", _extra("fp8_attention")),
    ("microbatches in a row on a chunk", lambda c: c.framework.microbatch_group or "pp"),
    ("gathers of weights stage by stage", lambda c: c.framework.gathers is Start.ON_DEMAND),
)
_IDLE = {"stages": "pp", "context-parallel exchange": "cp", "sequence parallelism": "tp"}  # unless above 1 afterwards


def changes(now: Setup, then: Setup) -> tuple[str, ...]:
    """Return the differences of `_NAMED` in words, "tp 8 -> 4", but for those without effect at the new degrees."""
    found = []
    for name, value in _NAMED:
        before, after = value(now), value(then)
        if before != after and (name not in _IDLE or getattr(then, _IDLE[name]) > 1):
            switch = isinstance(before, bool) and isinstance(after, bool)
            found.append(f"{name} {'on' if after else 'off'}" if switch else f"{name} {before} -> {after}")
    return tuple(found)


def _recompute(c: Setup) -> str:
    """Return the recompute in words, as plans show it; "full, 2 at once" where layers are recomputed in twos."""
    together = c.recompute_method == "uniform" and c.recompute_layers > 1
    return c.recompute_text + (f", {c.recompute_layers} at once" if together else "")


TOP = 5  # plans that are kept, of which `symconfig adapt` takes what changes least where they are close
# Of --tp-comm-overlap, which the search weighs as the run has it, too.
_PIECES = ("tp_forward", "tp_backward", "tp_pieces")


def best(run: Run, cluster: ClusterDescriptor, job: Job) -> Plan:
    """Return the plan for `job` with the run's model and up to five candidates. Raises InfeasibleError, InputError."""
    framework = willing(run.configuration.framework, cluster.gpu.architecture)
    like = replace(run.configuration, framework=framework, overlap_moe_a2a=False)
    return search(run.described.model, cluster, job, top=TOP, like=like)


def willing(framework: Framework, architecture: str) -> Framework:
    """Return the run's framework with the overlaps and microbatch groups that plans have by default, without masks.

    TP overlap in pieces stays as the run has it; a dispatcher that gathers everywhere becomes alltoall.
    """
    mine = framework.hide
    pieces = {name: getattr(mine, name) for name in _PIECES} if mine.tp_pieces > 1 else {}
    hide = replace(usual(framework.name, architecture).hide, **pieces)
    how = framework.implementation
    if how.experts.dispatch is Dispatch.EVERYWHERE:  # no plan has it
        how = changed(how, dispatcher="alltoall")
    return replace(
        framework,
        implementation=how,
        hide=hide,
        gathers=Start.AHEAD,
        microbatch_group=0,
        mask_bytes=0.0,
    )
