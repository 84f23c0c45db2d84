"""Over which changes a plan stays good, from Python: `symconfig.whatif("out", ["global_batch_size=64..4096"])`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from symconfig.api.planning import AnyPlan
from symconfig.errors import InputError
from symconfig.plans.file import loaded
from symconfig.runs.whatif.change import Case, through_changes
from symconfig.runs.whatif.whatif import WhatIf, varied
from symconfig.runs.whatif.whatif import whatif as run


def whatif(
    plan: AnyPlan,
    vary: Sequence[str],
    *,
    progress: Callable[[int], None] = lambda done: None,
) -> WhatIf:
    """Return over which ranges of values which plan is the best.

    plan: a result of `plan`, a file or its folder. vary: texts `NAME=LOW..HIGH`. progress: called with the number of
    searches done. Raises InputError with all problems.
    """
    one = loaded(plan)
    return run(one, varied(one, vary), progress)


def whatif_changes(
    plan: AnyPlan,
    changes: Sequence[Mapping[str, Any]],
    *,
    progress: Callable[[str, float], None] | None = None,
) -> tuple[Case, ...]:
    """Return for each change of the job the plan with the old choices kept, and a new plan.

    changes: fields of the job, `model` or `cluster`, by name. Raises InputError with all problems.
    """
    if not changes:
        raise InputError("says no change", field="changes", hint="global_batch_size=32")
    written = [{name: str(value) for name, value in change.items()} for change in changes]
    return through_changes(loaded(plan), written, progress)
