"""Kinds of checkpoints: a format, and where it has several, how it holds the optimizer's state.

Written as one word, `torch_dist:dp_reshardable`; a format alone means what the plan's release writes unasked.
"""

from __future__ import annotations

from dataclasses import dataclass

from symconfig.errors import InputError, Problem
from symconfig.frameworks.megatron import flags
from symconfig.plans.plan import Plan
from symconfig.runs.checkpoint.table import Format, table

# Megatron-LM's distributed optimizer writes its own buffers from here on, unless --dist-ckpt-optim-fully-reshardable
# asks for whole tensors; before, pieces of tensors (training/checkpointing.py, _build_sharded_state_dict_metadata).
BUFFERS_SINCE = "core_v0.15.0"
FSDP_SINCE = "core_v0.14.0"


@dataclass(frozen=True, slots=True)
class Kind:
    format: str
    optimizer: str = ""

    def __str__(self) -> str:
        return f"{self.format}:{self.optimizer}" if self.optimizer else self.format


@dataclass(frozen=True, slots=True)
class Saving:
    """How a run saves. kind: what it writes; options: what makes it do so; costs: what these are paid with."""

    kind: str
    options: str = ""
    costs: str = ""
    source: str = ""


def savings(plan: Plan) -> tuple[Saving, ...]:
    """How a run of the plan can save: as its rendered files do first, then with options beside theirs."""
    unasked = written(plan)
    entry = table().formats[unasked.format]
    ways = entry.optimizer if plan.best.options.zero_stage > 0 else {}  # else nothing is shared out among replicas
    release = plan.best.target.version
    return Saving(str(unasked)), *(
        Saving(str(Kind(unasked.format, name)), way.options, way.costs, way.source)
        for name, way in ways.items()
        if way.options and between(release, way.since, way.until)
    )


def written(plan: Plan) -> Kind:
    """What the plan's rendered files write."""
    target = plan.best.target
    if target.backend == "deepspeed":
        return Kind("deepspeed")
    if plan.best.options.zero_stage >= 2 and at_least(target.version, FSDP_SINCE):
        return Kind("fsdp_dtensor")
    return Kind("torch_dist", _optimizer(plan))


def _optimizer(plan: Plan) -> str:
    if plan.best.options.zero_stage == 0:
        return "whole"
    since = at_least(plan.best.target.version, BUFFERS_SINCE)
    return "dp_reshardable" if since else "fully_sharded_model_space"


def named(name: str | None, plan: Plan) -> Kind:
    """The kind of this name, or what the plan's own files write. Raises InputError for one that its framework has not,
    or that its release does not write."""
    if name is None:
        return written(plan)
    known = table().formats
    first, _, optimizer = name.partition(":")
    framework, release = plan.best.target.backend, plan.best.target.version
    fits = [word for word, entry in known.items() if framework in entry.framework]
    if first not in fits:
        raise InputError(
            Problem(
                "is no checkpoint of this framework",
                field="kind",
                got=repr(name),
                need=f"one of {', '.join(fits)} for {framework}",
            )
        )
    entry = known[first]
    if not between(release, entry.since, entry.until):
        raise InputError(
            Problem(
                f"is not written by {framework} {release}",
                field="kind",
                got=repr(name),
                need=" to ".join(filter(None, (entry.since, entry.until))),
            )
        )
    ways = _ways(entry, release)
    if optimizer and optimizer not in ways:
        raise InputError(
            Problem(
                f"{framework} {release} does not hold the optimizer so",
                field="kind",
                got=repr(name),
                need=f"one of {', '.join(ways)}" if ways else first,
            )
        )
    return Kind(first, optimizer or (_optimizer(plan) if entry.optimizer else ""))


def kinds(plan: Plan) -> tuple[str, ...]:
    """Every kind that the plan's release can write or be converted to, each as `named` reads it."""
    framework, release = plan.best.target.backend, plan.best.target.version
    return tuple(
        f"{word}:{optimizer}" if optimizer else word
        for word, entry in table().formats.items()
        if framework in entry.framework and between(release, entry.since, entry.until)
        for optimizer in (_ways(entry, release) or ("",))
    )


def _ways(entry: Format, release: str) -> list[str]:
    """In which the release can hold the optimizer's state."""
    return [name for name, span in entry.optimizer.items() if between(release, span.since, span.until)]


def at_least(release: str, since: str) -> bool:
    """Whether a Megatron-LM release is that one or a later one."""
    known = flags.versions()
    return known.index(flags.resolve(release)) >= known.index(flags.resolve(since))


def between(release: str, since: str | None, until: str | None) -> bool:
    """Bounds are of Megatron-LM's releases; what has none holds for every release of any framework."""
    return (since is None or at_least(release, since)) and (until is None or at_least(until, release))
