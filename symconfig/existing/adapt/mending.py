"""An adapted configuration audited as its framework would read it, and mended until nothing is left that a change of
an option can mend."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from symconfig.existing.adapt.draft import Draft, Progress
from symconfig.existing.adapt.inspect import Inspection, inspect
from symconfig.existing.adapt.outcome import Flaw
from symconfig.existing.launch.reading import Reading
from symconfig.existing.rules.rule import Finding
from symconfig.plans.plan import Plan

# Ways to mend a finding, the most natural first; which of them are right the next audit says.
Repairs = Callable[[Progress, Finding], Iterator[Progress]]
_MOST = 20  # findings that are looked at: only a defect comes here


def mended(
    progress: Progress, plan: Plan, original: Reading, repairs: Repairs, sound: Callable[[Draft], bool]
) -> tuple[Progress, tuple[Flaw, ...]]:
    """Mend every error of the result, and every warning that it has and the original had not, where one change does.

    sound: whether a draft still is the plan's as far as it was. Returns the errors that are left.
    """
    before, now = inspect(original, plan, original.world.gpus), inspect(progress.draft.reading, plan)
    seen = set()
    for _ in range(_MOST):
        open_ = {**now.errors, **now.new(before)}
        key = next((each for each in open_ if each not in seen), None)
        if key is None:
            break
        seen.add(key)
        for after in repairs(progress, open_[key]):
            then = inspect(after.draft.reading, plan)
            if key not in {**then.errors, **then.warnings} and _no_worse(then, now, before) and sound(after.draft):
                progress, now = after, then
                break
    for finding in now.new(before).values():
        progress = progress.noted(f"warning: {finding.problem} [{finding.rule}] The plan's values bring it.")
    return progress, now.flaws(before)


def because(finding: Finding) -> str:
    """Say what a change mends, as a clause behind "since"."""
    sentence = ": ".join(filter(None, (finding.problem.field, finding.problem.what)))
    return f'an audit finds "{sentence}" [{finding.rule}]'


def _no_worse(then: Inspection, now: Inspection, before: Inspection) -> bool:
    """Tell whether an audit reports nothing that it did not report already."""
    return not (then.errors.keys() - now.errors.keys() or then.new(before).keys() - now.new(before).keys())
