"""A person's files with the values of a plan in them, with all that a person should know before they start the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from symconfig.errors import InputError
from symconfig.existing.adapt.files import adapted, opened, was
from symconfig.existing.adapt.outcome import BESTS, Adapted, Best
from symconfig.existing.audit.judge import judge
from symconfig.existing.launch.reading import Reading
from symconfig.plans.plan import Plan
from symconfig.runs.adapting.closest import Pick, picks
from symconfig.runs.adapting.fate import Fate, fates


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation(Adapted):
    """pick: the plan whose values are in the files. fates: what becomes of each checkpoint that the files name."""

    pick: Pick
    fates: tuple[Fate, ...]

    def to_dict(self, written: bool) -> dict[str, Any]:
        """Return the contract of --json."""
        return {
            **Adapted.to_dict(self, written),
            "plan": self.pick.to_dict(),
            "checkpoints": [fate.to_dict() for fate in self.fates],
        }


def adaptation(
    source: str,
    plan: Plan,
    variables: Mapping[str, str],
    extra: Sequence[str] = (),
    best: Best = "planned",
    *,
    harmless: Sequence[str] = (),
) -> Adaptation:
    """Adapt files to the plan, or to another one that the model cannot tell from it. best: which of them: the one with
    the fewest changes, the fastest, or the plan's own choice.

    Raises InputError where the files cannot be read, or are of another model or framework than the plan.
    """
    if best not in BESTS:
        raise InputError("wrong value", field="best", got=repr(best), need=f"one of {', '.join(BESTS)}")
    draft = opened(source, variables, extra, harmless)
    old = ran(draft.reading, plan)
    tried: list[tuple[Pick, Adapted]] = []
    for pick in picks(draft, plan, old, best):
        try:
            outcome = adapted(source, pick.plan, variables, extra, harmless)
        except InputError:
            if pick.plan.best == plan.best:
                raise
            continue
        tried.append((pick, outcome))
        if not outcome.harmed:
            break
    pick, outcome = tried[0] if tried[-1][1].harmed else tried[-1]
    values = {field.name: getattr(outcome, field.name) for field in fields(Adapted)}
    return Adaptation(**values, pick=pick, fates=fates(outcome, pick.plan, old))


def ran(reading: Reading, plan: Plan) -> Plan | None:
    """Return the plan of the run as the files say it, of the same model and schedule.

    None where they say none that could be.
    """
    try:
        old = judge(was(reading, plan), plan.cluster, plan.job.limits).plan
    except InputError:
        return None
    return replace(old, model=plan.model, job=old.job.model_copy(update={"training": plan.job.training}))
