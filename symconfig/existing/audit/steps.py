"""The way from a run to a better plan, one change after the other, each with what it gains by itself.

The order is greedy: of the changes that are left, the one that is fastest next, as soon as something fits; until then
the one that comes closest to fitting. Changes that only run together are made together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import combinations
from math import isclose
from operator import attrgetter

from symconfig.cost.framework import Framework, device_bytes
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.errors import InputError
from symconfig.existing.audit.judge import Judged
from symconfig.existing.recover.run import Run
from symconfig.format import percent
from symconfig.frameworks.behaviour import usual
from symconfig.frameworks.extras import Extras
from symconfig.frameworks.kernels import changed
from symconfig.frameworks.tables import options
from symconfig.graph.block import LAYER
from symconfig.graph.implementation import Dispatch
from symconfig.plans.degrees import Degrees
from symconfig.plans.plan import Plan
from symconfig.schedule.timeline import Start
from symconfig.solve.configuration import Configuration
from symconfig.solve.costed import costed
from symconfig.solve.predict import as_found
from symconfig.solve.search import search
from symconfig.solve.timeline import refined_s

DEGREES = frozenset(field.name for field in fields(Degrees))
# Fields of a configuration, or of its degrees, that are one decision, in the order in which ties are broken.
DECISIONS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp",),
    "stages": ("pp", "vpp", "layout", "first_layers", "last_layers", "ends_as_layers"),
    "cp": ("cp", "cp_comm"),
    "experts": ("ep", "etp"),
    "micro-batch": ("micro",),
    "sequence parallel": ("sequence_parallel",),
    "zero": ("zero", "offload"),
    "recompute": ("modules", "block_layers", "uniform_layers", "activation_offload"),
    "overlap": ("framework",),
    "precision": ("precision",),
}
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


def steps(judged: Judged, better: Plan, framework: Framework) -> tuple[State, ...]:
    """Return the states on the way from the run to the better plan's best candidate, each with its gain.

    Return () if they do not differ in any decision. framework: the one that the plan was searched with.
    """
    if options(better.best.target.backend):
        framework = Extras.planned(better.best).put_on(framework, better.cluster.gpu.architecture)
    now, target = judged.run.configuration, Configuration.of(better.best, framework)
    predicted = judged.plan.best.predicted
    here, done = State((), predicted.step_s, predicted.device_bytes, judged.fits), []
    while left := [name for name in DECISIONS if differs(name, now, target)]:
        names, reached = _next(judged, better, now, target, left, here)
        now = moved(now, target, names)
        here = replace(reached, gain=1 - reached.step_s / here.step_s)
        done.append(here)
    return tuple(done)


def _next(
    judged: Judged, better: Plan, now: Configuration, target: Configuration, left: list[str], here: State
) -> tuple[tuple[str, ...], State]:
    """Return the decisions to change next, and the state after them.

    Single decisions are tried, then pairs, then threes, until some can run and change time or memory (by more than
    1e-6): of these the fastest that fits in memory, else the one with the least memory. If none can, all that are left,
    with the plan's own prediction, which fits.
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


def _state(judged: Judged, better: Plan, then: Configuration, decisions: tuple[str, ...]) -> State | None:
    """Return the state with predicted time and memory and whether it fits, its gain 0; None if it cannot run.

    It cannot if its degrees make another number of GPUs, its values are invalid or a constraint refuses it. decisions:
    the changes in words.
    """
    if then.degrees.world_size != judged.plan.best.parallel.world_size:
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


def differs(name: str, one: Configuration, other: Configuration) -> bool:
    """Return whether the configurations differ in this decision of `DECISIONS`, fields without effect aside."""
    mine, theirs = _normalised(one), _normalised(other)
    return any(_value(mine, field) != _value(theirs, field) for field in DECISIONS[name])


def _value(c: Configuration, field: str) -> object:
    return getattr(c.degrees if field in DEGREES else c, field)


def _normalised(c: Configuration) -> Configuration:
    """Return the configuration with fields that have no effect at its degrees reset, to compare it by.

    Stages and vpp with pp 1, sequence parallelism with tp 1, the kind of context parallelism with cp 1, overlap of the
    pipeline and microbatch group with vpp 1, overlap of gradients with one replica; when weights are gathered also
    without ZeRO, and gathers stage by stage also with pp 1 or vpp above 1.
    """
    framework = c.framework
    if c.degrees.pp == 1:
        c = replace(
            c, degrees=replace(c.degrees, vpp=1), layout="", first_layers=None, last_layers=None, ends_as_layers=(0, 0)
        )
    alone, in_turn = c.degrees.dp * c.degrees.cp == 1, c.degrees.pp > 1 and c.degrees.vpp == 1
    if c.zero == 0 or alone or (framework.gathers is Start.ON_DEMAND and not in_turn):
        framework = replace(framework, gathers=Start.AHEAD)
    if alone:
        framework = replace(framework, hide=replace(framework.hide, data=0.0))
    if c.degrees.vpp == 1:
        framework = replace(framework, hide=replace(framework.hide, pp=0.0), microbatch_group=0)
    return replace(
        c,
        framework=framework,
        sequence_parallel=c.sequence_parallel and c.degrees.tp > 1,
        cp_comm=c.cp_comm if c.degrees.cp > 1 else "p2p",
    )


def moved(now: Configuration, target: Configuration, names: tuple[str, ...]) -> Configuration:
    """Return the configuration with the named decisions taken from the target.

    dp becomes the GPUs over tp x pp x cp, rounded down, at least 1. Sequence parallelism is off if tp becomes 1.
    """
    named = [field for name in names for field in DECISIONS[name]]
    degrees = {field: getattr(target.degrees, field) for field in named if field in DEGREES}
    values = {field: getattr(target, field) for field in named if field not in DEGREES}
    then = replace(now, degrees=replace(now.degrees, **degrees), **values)
    if "tp" in names and then.degrees.tp == 1:
        then = replace(then, sequence_parallel=False)
    p = then.degrees
    return replace(then, degrees=replace(p, dp=max(1, now.degrees.world_size // (p.tp * p.pp * p.cp))))


def _extra(name: str) -> Callable[[Configuration], object]:
    return lambda c: getattr(Extras.of(c.framework), name) or ("alltoall" if name == "flex_backend" else False)


# What changes are named by: each with its value, by which two configurations differ. A degree of 1 makes some idle.
_NAMED: tuple[tuple[str, Callable[[Configuration], object]], ...] = (
    *((name, attrgetter(f"degrees.{name}")) for name in ("tp", "pp", "vpp", "cp", "ep", "etp")),
    ("micro-batch", attrgetter("micro")),
    ("zero", attrgetter("zero")),
    ("stages", lambda c: _ends(c)),
    ("context-parallel exchange", attrgetter("cp_comm")),
    ("sequence parallelism", attrgetter("sequence_parallel")),
    ("recompute", lambda c: recompute(c)),
    ("precision", attrgetter("precision")),
    ("activation offload", attrgetter("activation_offload")),
    ("optimizer offload", lambda c: percent(c.offload.optimizer)),
    ("overlapped gradient reduction", lambda c: bool(c.framework.hide.data)),
    ("overlapped weight gather", lambda c: bool(c.framework.hide.data) and c.framework.gathers is not Start.APART),
    ("overlapped pipeline messages", lambda c: bool(c.framework.hide.pp)),
    ("overlapped all-to-all of experts", lambda c: bool(c.framework.hide.experts)),
    ("user buffers", _extra("tp_comm")),
    ("dispatcher", _extra("flex_backend")),
    ("CUDA graphs", _extra("graphs")),
    ("bytes of a gradient", _extra("grad_bytes")),
    ("weights in 8 bits", _extra("fp8_param_gather")),
    ("fused loss", _extra("fused_loss")),
    ("microbatches in a row on a chunk", lambda c: c.framework.microbatch_group or "pp"),
    ("gathers of weights stage by stage", lambda c: c.framework.gathers is Start.ON_DEMAND),
)
_IDLE = {"stages": "pp", "context-parallel exchange": "cp", "sequence parallelism": "tp"}  # unless above 1 afterwards


def changes(now: Configuration, then: Configuration) -> tuple[str, ...]:
    """Return the differences in words, such as "tp 8 -> 4" or "fused loss on"; () if there are none that `_NAMED` has.

    Those without effect at the new degrees (`_IDLE`) are skipped.
    """
    found = []
    for name, value in _NAMED:
        before, after = value(now), value(then)
        if before != after and (name not in _IDLE or getattr(then.degrees, _IDLE[name]) > 1):
            switch = isinstance(before, bool) and isinstance(after, bool)
            found.append(f"{name} {'on' if after else 'off'}" if switch else f"{name} {before} -> {after}")
    return tuple(found)


def _ends(c: Configuration) -> str:
    if c.layout:
        return c.layout
    ends = [f"{count} layers {end}" for end, count in (("first", c.first_layers), ("last", c.last_layers)) if count]
    ends += [f"the {end} as a layer" for end, on in zip(("embedding", "loss"), c.ends_as_layers, strict=True) if on]
    return ", ".join(ends) or "equal"


def recompute(c: Configuration) -> str:
    """Return the recompute in words: "none", "full", "full 3/chunk", "full, 2 at once", or the modules
    joined by "+".
    """
    if c.block_layers:
        return f"full {c.block_layers}/chunk"
    if LAYER in c.modules:
        return "full" if c.uniform_layers == 1 else f"full, {c.uniform_layers} at once"
    return "+".join(sorted(c.modules)) or "none"


TOP = 5  # plans that are kept, of which `symconfig adapt` takes what changes least where they are close
_PIECES = (
    "tp_forward",
    "tp_backward",
    "tp_pieces",
)  # of --tp-comm-overlap, which the search weighs as the run has it, too


def best(run: Run, cluster: ClusterDescriptor, job: Job) -> Plan:
    """Return the plan for `job` with the run's model, with up to five candidates. Raises InfeasibleError
    or InputError.
    """
    framework = willing(run.configuration.framework, cluster.gpu.architecture)
    return search(run.described.model, cluster, job, top=TOP, framework=framework)


def willing(framework: Framework, architecture: str) -> Framework:
    """Return the framework of the run with the overlaps and microbatch groups that plans have by default, and without
    masks.

    TP overlap in pieces stays as the run has it; a dispatcher that gathers everywhere becomes alltoall, as no plan has
    it.
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
