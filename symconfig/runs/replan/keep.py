"""Choices of an old plan as pins of a new one, and which of them keep anything from fitting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import PIN_NAMES, Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem, SymconfigError, among
from symconfig.frameworks.extras import Extras
from symconfig.plans.plan import Candidate, Recompute
from symconfig.solve.extras import EXTRAS, Extra
from symconfig.solve.run import fits
from symconfig.solve.search import resolved

# What decides which rank holds which part of which weight: where these stay, every rank reads what it wrote.
LAYOUT = ("tp", "pp", "vpp", "ep", "etp")


def _degree(name: str, candidate: Candidate) -> str:
    return str(getattr(candidate.parallel, name))


def _extra(extra: Extra, candidate: Candidate) -> str | None:
    """Return the word of an option beside the degrees; None for a framework's own value that no pin could ask for."""
    value = getattr(Extras.planned(candidate), extra.name)
    if value != extra.usual and not extra.of(candidate.target.backend):
        return None
    return next(word for word, meant in extra.values(candidate.parallel.world_size).items() if meant == value)


_VALUES: Mapping[str, Callable[[Candidate], str | None]] = {
    **{name: partial(_degree, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")},
    "mbs": lambda candidate: str(candidate.batch.micro),
    "zero": lambda candidate: str(candidate.options.zero_stage),
    "sp": lambda candidate: _switch(candidate.options.sequence_parallel),
    "recompute": lambda candidate: _recompute(candidate.options.recompute),
    "precision": lambda candidate: candidate.options.precision,
    "optimizer_offload": lambda candidate: f"{candidate.options.optimizer_offload:g}",
    "activation_offload": lambda candidate: _switch(candidate.options.activation_offload),
    "cp_comm": lambda candidate: candidate.options.cp_comm,
    "layout": lambda candidate: candidate.options.pipeline_layout,
    "schedule": lambda candidate: candidate.options.schedule,
    **{extra.pin: partial(_extra, extra) for extra in EXTRAS},
}


def _switch(on: bool) -> str:
    return "1" if on else "0"


def _recompute(recompute: Recompute) -> str | None:
    """Return the pin; None for whole layers of which some are recomputed: a pin says all or none."""
    if recompute.method == "block":
        return None
    modules = ",".join(recompute.modules)
    return f"{recompute.granularity}:{modules}" if recompute.granularity == "selective" else recompute.granularity


def names(words: Sequence[str], field: str) -> tuple[str, ...]:
    """Return each name once, in the order of the pins. Raises InputError with every one that is no pin's."""
    wrong = [name for name in dict.fromkeys(words) if name not in PIN_NAMES]
    if wrong:
        raise InputError(
            [Problem("is no choice's name", field=field, got=repr(name), **among(name, PIN_NAMES)) for name in wrong]
        )
    return tuple(name for name in PIN_NAMES if name in words)


def pins(candidate: Candidate, kept: Sequence[str]) -> dict[str, str]:
    """Return the candidate's own values. Raises InputError with every name of which it has none that a pin can say."""
    values = {name: _VALUES[name](candidate) for name in kept}
    wrong = [name for name, value in values.items() if value is None]
    if wrong:
        raise InputError(
            [
                Problem("cannot be kept: the old plan has no value of it that a pin says", field="keep", got=name)
                for name in wrong
            ]
        )
    return {name: value for name, value in values.items() if value is not None}


def differing(old: Candidate, new: Candidate, among: Sequence[str]) -> dict[str, str]:
    """Return the old values of these choices, but for degrees that neither uses; nothing where both have the same."""
    before, after = pins(old, among), pins(new, among)
    return (
        {name: value for name, value in before.items() if (value, after[name]) != ("1", "1")} if before != after else {}
    )


def binding(
    model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, kept: Mapping[str, str]
) -> tuple[tuple[str, ...], ...]:
    """Find, of kept pins that leave no plan, the smallest sets that do so by themselves.

    job: without them.
    """
    for size in range(1, len(kept) + 1):
        sets = tuple(
            some
            for some in combinations(kept, size)
            if not _possible(model, cluster, job, {name: kept[name] for name in some})
        )
        if sets:
            return sets
    return ()


def _possible(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, kept: Mapping[str, str]) -> bool:
    trial = job.model_copy(update={"pins": {**job.pins, **kept}})
    try:
        return fits(model, cluster, resolved(model, cluster, trial))
    except SymconfigError:
        return False
