"""The kinds of checkpoints that a plan's run can write, and the one of a name."""

from __future__ import annotations

from dataclasses import dataclass

from symconfig.errors import InputError, nearest
from symconfig.frameworks.backend import Kind
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron.backend import optimizer as unasked
from symconfig.frameworks.megatron.flags import at_least
from symconfig.plans.plan import Plan
from symconfig.runs.checkpoint.table import Format, table


@dataclass(frozen=True, slots=True)
class Saving:
    """A way in which a run saves. kind: the checkpoint that it writes; options: the run's options for it, "" by
    default; costs: its disadvantages; source: where that is documented.
    """

    kind: str
    options: str = ""
    costs: str = ""
    source: str = ""


def savings(plan: Plan) -> tuple[Saving, ...]:
    """Return the ways in which a plan's run can save: as its files do, then those that need further options."""
    usual = written(plan)
    entry = table().formats[usual.format]
    ways = entry.optimizer if plan.best.options.zero_stage > 0 else {}  # else nothing is shared out among replicas
    release = plan.best.target.version
    return Saving(str(usual)), *(
        Saving(str(Kind(usual.format, name)), way.options, way.costs, way.source)
        for name, way in ways.items()
        if way.options and between(release, way.since, way.until)
    )


def written(plan: Plan) -> Kind:
    """Return the checkpoint's kind that the plan's rendered files write."""
    best = plan.best
    return BACKENDS[best.target.backend].writes(best.options.zero_stage, best.target.version)


def named(name: str | None, plan: Plan) -> Kind:
    """Return the kind of a name, `format` or `format:optimizer`; None: the one that the plan's files write.

    Raises InputError for a kind that the plan's release neither writes nor can be converted to.
    """
    if name is None:
        return written(plan)
    target, known = plan.best.target, kinds(plan)
    first, _, optimizer = name.partition(":")
    if name not in known and name not in {kind.partition(":")[0] for kind in known}:
        what = f"is no checkpoint of {target.backend} {target.version}"
        need = f"one of {', '.join(known)}"
        raise InputError(what, field="kind", got=repr(name), need=need, hint=nearest(name, known))
    usual = unasked(plan.best.options.zero_stage, target.version) if table().formats[first].optimizer else ""
    return Kind(first, optimizer or usual)


def kinds(plan: Plan) -> tuple[str, ...]:
    """Return the names of all kinds that the plan's release can write or be converted to."""
    framework, release = plan.best.target.backend, plan.best.target.version
    return tuple(
        f"{word}:{optimizer}" if optimizer else word
        for word, entry in table().formats.items()
        if framework in entry.framework and between(release, entry.since, entry.until)
        for optimizer in (_ways(entry, release) or ("",))
    )


def _ways(entry: Format, release: str) -> list[str]:
    """Return the names of the layouts of the optimizer's state that the release supports for a format."""
    return [name for name, span in entry.optimizer.items() if between(release, span.since, span.until)]


def between(release: str, since: str | None, until: str | None) -> bool:
    """Return whether a release lies within bounds, both included; a bound of None is open."""
    return (since is None or at_least(release, since)) and (until is None or at_least(until, release))
