"""The answer of a plan made again, as data."""

from __future__ import annotations

from dataclasses import dataclass

from symconfig.plans.plan import Plan
from symconfig.render import own_target, target_of
from symconfig.runs.checkpoint import Loadable
from symconfig.runs.replan.changes import Changes
from symconfig.runs.replan.differences import Difference
from symconfig.runs.replan.near_plan import NearPlan
from symconfig.runs.replan.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Kept:
    """The choices that had to stay. free: the best plan without; costs_s: what a step takes longer than there."""

    pins: dict[str, str]
    free: Plan
    costs_s: float

    @property
    def share(self) -> float:
        """Return the share of the free plan's step."""
        return self.costs_s / self.free.best.predicted.step_s


@dataclass(frozen=True, slots=True)
class Drift:
    """The old plan under its own inputs: what it said of itself, and what is computed now."""

    said_s: float
    now_s: float
    said_bytes: float
    now_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """inputs: what is asked for now and was not before. drift: None where the old plan is predicted as it was.

    files: of those that a plan writes besides plan.json, the ones that are others now; None: they cannot be compared.
    other_batch: a sentence that names a batch close by that is faster or keeps more of the checkpoint.
    edited: parts of the old plan's inputs that are not what its answer was found for; then nothing is said of drift.
    """

    old: Plan
    new: Plan
    inputs: tuple[Difference, ...]
    drift: Drift | None
    changes: Changes
    kept: Kept | None
    near_plan: NearPlan | None
    schedule: Schedule
    checkpoint: Loadable
    files: tuple[str, ...] | None
    other_batch: str | None = None
    edited: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Tell whether the old choice is still the best."""
        return not self.changes.decisions and not self.changes.follows

    @property
    def options(self) -> tuple[str, ...]:
        """Return the words, besides its own options, with which the framework's program goes on from a checkpoint."""
        words = [*self.checkpoint.options("new")]
        words += [word for word in self.schedule.options if word not in words]
        return tuple(words if "--load" in words else ["--load", "CHECKPOINT", *words])

    @property
    def going_on(self) -> str | None:
        """Say how the new run is started there, in the words of its target; None: it has none that are known here."""
        command = target_of(self.new.model, self.new.job).resume_command
        return command(self.new, self.options) if command is not None else None

    @property
    def targets(self) -> tuple[str, str]:
        """Return the targets of the old and the new plan."""
        return own_target(self.old), own_target(self.new)
