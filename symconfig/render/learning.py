"""Which targets learn by reinforcement, and what those that do have alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from symconfig.descriptor.rl import Rl
from symconfig.errors import InfeasibleError, Problem
from symconfig.format import gib, percent
from symconfig.plans.plan import Plan
from symconfig.render.summary import Row

STATES, WEIGHTS = "optimizer state", "weights"
ANY_WAY = ((), (STATES,), (WEIGHTS, STATES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Learns:
    """What of a step of reinforcement learning a program can be told.

    engines: that generate for it, the usual one first. away: the parts of the trained models that it can keep on the
    host between phases, a tuple for each way, where the engine is on the same GPUs. epochs: it can train more than once on the same samples.
    """

    algorithms: tuple[str, ...]
    engines: tuple[str, ...]
    placements: tuple[str, ...] = ("colocated",)
    away: tuple[tuple[str, ...], ...] = ANY_WAY
    epochs: bool = True


def guarded(module: ModuleType, inner: Callable[..., Mapping[str, object]]) -> Callable[..., Mapping[str, object]]:
    """Return a target's `variables`, which refuse plans of another kind: those for reinforcement learning, unless its
    module says `LEARNS`, and all others, if it does."""
    learns: Learns | None = getattr(module, "LEARNS", None)

    def variables(plan: Plan, *of: Any) -> Mapping[str, object]:
        if (plan.job.rl is None) != (learns is None):
            what = "learns by reinforcement alone" if learns else "cannot run a step of reinforcement learning"
            hint = "task: rl, with a section rl" if learns else "--target verl"
            raise InfeasibleError(Problem(f"{module.NAME} {what}", field="task", got=plan.task, hint=hint))
        return inner(plan, *of)

    return variables


def refuse(plan: Plan, learns: Learns, name: str, others: Iterable[Problem]) -> None:
    """Raise InfeasibleError with what of a step the program `name` cannot be told, and with `others`."""
    if found := (*_untold(plan, section(plan), learns, name), *others):
        raise InfeasibleError(found)


def section(plan: Plan) -> Rl:
    """Return the section `rl` of a plan's job, which `guarded` has seen there."""
    assert plan.job.rl is not None, "LEARNS refuses other plans"
    return plan.job.rl


def _untold(plan: Plan, rl: Rl, learns: Learns, name: str) -> Iterator[Problem]:
    """Yield what of the step a program cannot be told."""
    choices = {
        "rl.algorithm": (rl.algorithm, learns.algorithms),
        "rl.rollout.engine": (rl.rollout.engine or learns.engines[0], learns.engines),
        "rl.placement": (rl.placement, learns.placements),
    }
    for field, (got, able) in choices.items():
        if got not in able:
            yield Problem(f"{name} knows no such", field=field, got=got, need=" or ".join(able))
    if rl.epochs > 1 and not learns.epochs:
        yield Problem(f"{name} trains once on what was generated", field="rl.epochs", got=str(rl.epochs), need="1")
    if plan.rl and rl.placement == "colocated" and plan.rl[0].away not in learns.away:
        able = tuple(" and ".join(each) or "nothing" for each in learns.away)
        got = " and ".join(plan.rl[0].away) or "nothing"
        what = f"{name} keeps other parts on the host between phases, so it needs a plan of its own"
        yield Problem(what, field="rl", got=got, need=" or ".join(able), hint=f"symconfig plan … --target {name}")


def phases(plan: Plan) -> tuple[Row, ...]:
    """Return a row for each phase of the step: its seconds, their share, the fullest GPU, and what is on it."""
    if not plan.rl:
        return ()
    step = plan.rl[0]
    total = sum(phase.seconds for phase in step.phases)
    return tuple(
        Row(
            phase.name,
            (
                f"{phase.seconds:.3g}",
                percent(phase.seconds / total),
                gib(phase.bytes),
                ", ".join(
                    f"{name} {gib(size)}" for name, size in sorted(phase.holds.items(), key=lambda part: -part[1])
                ),
            ),
        )
        for phase in step.phases
    )


def notes(plan: Plan) -> Iterator[str]:
    """Yield what a person should know of the step before the first start."""
    rl = section(plan)
    if not rl.reference:
        yield "There is no KL term, and so no reference model"
    if plan.rl and plan.rl[0].generated_per_s_per_gpu and rl.rollout.tokens_per_s_per_gpu is None:
        yield (
            f"Generation is predicted by a model, at {plan.rl[0].generated_per_s_per_gpu:,.0f} tokens/s on each GPU; "
            "plan again with rl.rollout.tokens_per_s_per_gpu of your first steps' log"
        )
