"""Ranges over which a plan stays the best, from Python: `symconfig.whatif("out", ["global_batch_size=64..4096"])`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from symconfig.api.arguments import typed
from symconfig.api.planning import PlanResult
from symconfig.plans.file import load_plan
from symconfig.runs.whatif.vary import varied
from symconfig.runs.whatif.whatif import WhatIf
from symconfig.runs.whatif.whatif import whatif as run


@typed
def whatif(
    plan: str | Path | PlanResult,
    vary: Sequence[str],
    *,
    mapped: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> WhatIf:
    """Return over which ranges a plan stays the best.

    plan: a result of `plan`, a file, or the folder that holds it. vary: `NAME=LOW..HIGH` each. mapped: also a map of
    the first two names. progress: is told how many searches are done. Raises InputError with all that is wrong.
    """
    loaded = plan.plan if isinstance(plan, PlanResult) else load_plan(Path(plan))
    return run(loaded, varied(loaded, vary), mapped, progress)
