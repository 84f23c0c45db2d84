"""Which targets learn by reinforcement or from pairs, and what those that do have alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from symconfig.errors import InfeasibleError, Problem
from symconfig.format import gib, percent, seconds
from symconfig.plans.plan import Plan
from symconfig.render.summary import Row


def guarded(module: ModuleType, inner: Callable[..., Mapping[str, object]]) -> Callable[..., Mapping[str, object]]:
    """Return a target's `variables`, which refuse plans of another kind: those for reinforcement learning, unless its
    module says `LEARNS`, and all others, if it does; those for pairs, unless it says `COMPARES`."""
    learns, compares = getattr(module, "LEARNS", False), getattr(module, "COMPARES", False)

    def variables(plan: Plan, *of: Any) -> Mapping[str, object]:
        if (plan.job.rl is not None) != learns:
            what = "learns by reinforcement alone" if learns else "cannot run a step of reinforcement learning"
            hint = "task: rl, with a section rl" if learns else "--target verl"
            raise InfeasibleError(Problem(f"{module.NAME} {what}", field="task", got=plan.task, hint=hint))
        if plan.job.preference is not None and not compares:
            what = f"{module.NAME} cannot train on pairs"
            raise InfeasibleError(Problem(what, field="task", got=plan.task, hint="--target llamafactory"))
        return inner(plan, *of)

    return variables


def phases(plan: Plan) -> tuple[Row, ...]:
    """Return a row for each phase of the step: its seconds, their share, the fullest GPU, and what is on it."""
    if not plan.steps:
        return ()
    step = plan.steps[0]
    total = sum(phase.seconds for phase in step.phases)
    return tuple(
        Row(
            phase.name,
            (
                seconds(phase.seconds),
                percent(phase.seconds / total),
                gib(phase.bytes),
                ", ".join(
                    f"{name} {gib(size)}" for name, size in sorted(phase.holds.items(), key=lambda part: -part[1])
                ),
            ),
        )
        for phase in step.phases
    )
