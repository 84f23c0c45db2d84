"""What of a plan the pinned DeepSpeed release and the programs that read its data refuse."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.descriptor.config_writer import unsaid
from symconfig.errors import InfeasibleError, Problem
from symconfig.frameworks.deepspeed.releases import DEEPSPEED_RELEASE
from symconfig.plans.plan import Plan
from symconfig.render.refused import refused


def refuse(plan: Plan, *others: Problem) -> None:
    """Raise InfeasibleError with everything in the plan that DeepSpeed cannot run, and with `others`."""
    if faults := (*problems(plan), *others):
        raise InfeasibleError(faults)


def data_problems(plan: Plan, reader: str) -> Iterator[Problem]:
    """Yield a problem for data that only Megatron-LM reads."""
    if plan.training.blended:
        yield Problem(
            f"{reader} takes files without weights",
            field="training.data_path",
            got=" ".join(plan.training.data_path),
            need=" ".join(plan.training.data_path[1::2]),
        )


def problems(plan: Plan) -> tuple[Problem, ...]:
    """Return everything in the plan that DeepSpeed cannot run, and what Transformers cannot be told of its model."""
    return (*(refusal.problem() for refusal in refused(plan, "deepspeed", DEEPSPEED_RELEASE)), *model_problems(plan))


def model_problems(plan: Plan) -> Iterator[Problem]:
    """Yield what Transformers cannot be told of a plan's model. One with a vision tower is only ever loaded by name, so
    that nothing is written of it; a head that the program puts is nothing to be told."""
    unwritten = () if plan.model.vision is not None else unsaid(plan.model)
    yield from (each for each in unwritten if not (plan.job.puts_head and each.field == "num_labels"))
