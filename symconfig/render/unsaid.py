"""What of a job's training a target is not told, and where its checkpoints go: said, so that nobody finds out later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from symconfig.descriptor.training import Training
from symconfig.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Saving:
    """How a run is told to save. word: what a command has that says so. command: the one that does."""

    word: str
    command: str


def unsaid(plan: Plan, untold: Mapping[str, str]) -> tuple[str, ...]:
    """Name the fields that the job sets and its files do not say. untold: of a target, fields and why."""
    return tuple(
        f"training.{name} {_shown(getattr(plan.training, name))} is not passed on: {why}"
        for name, why in untold.items()
        if getattr(plan.training, name) != Training.model_fields[name].default
    )


def unsaved(plan: Plan, saving: Saving | None) -> Iterator[str]:
    """Say that no checkpoint is written where nobody asks for one. saving: None where some are all the same."""
    if plan.training.save is None and saving is not None:
        yield f"No checkpoint is written. Try: --save DIR, training.save in the job, or {saving.command}"


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
