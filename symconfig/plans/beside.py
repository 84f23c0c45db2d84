"""What stands beside a plan's families, in sentences that are the same wherever they are read."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.descriptor.sections import Position
from symconfig.format import count
from symconfig.plans.configuration import DEGREES as DEGREES
from symconfig.plans.plan import Candidate, Plan

NOTHING = 0.0005  # of a step: what is said to be nothing


def layout(candidate: Candidate) -> str:
    """Return a candidate's layout in words: degrees above 1, micro-batch, then recompute and layout string if any.

    As in `tp 4 pp 4 vpp 5 dp 4, micro-batch 1`; without a degree above 1 it begins `one GPU`. Recompute is of its
    modules, or of `layers`.
    """
    c = candidate.configuration
    degrees = " ".join(f"{name} {getattr(c, name)}" for name in DEGREES if getattr(c, name) > 1) or "one GPU"
    more = [f"micro-batch {c.micro}"]
    if c.recompute != "none":
        more.append("recompute of " + ("+".join(c.recompute_modules) or "layers"))
    if c.pipeline_layout:
        more.append(f"layout {c.pipeline_layout}")
    return ", ".join([degrees, *more])


def caveats(plan: Plan) -> Iterator[str]:
    """Yield sentences of warning about the best plan.

    In order: experimental options, gradients that are reduced in 16 bits, sequences longer than the model takes.
    """
    yield from opened(plan)
    yield from reduced(plan)
    yield from beyond(plan)


def opened(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each experimental option of the best plan, with why it is used."""
    for one in plan.search.opened:
        reason = "A pin asks for it." if one.pinned else "Nothing fits without it."
        yield f"Not stable: {one.label} ({one.maturity}: {one.why}). {reason}"


def reduced(plan: Plan) -> Iterator[str]:
    """Yield a sentence if gradients are accumulated in more than 16 bits but reduced in the weights' type.

    That is so with several data-parallel ranks (dp x cp) in DeepSpeed (engine.py, communication_data_type) and in
    Accelerate's FSDP, but not for verl-fsdp.
    """
    c = plan.best.configuration
    ranks = c.dp * c.cp
    who = {
        "deepspeed": 'DeepSpeed does by default. "communication_data_type": "fp32" in the JSON changes that for twice '
        "the bytes",
        "fsdp": None if plan.job.target == "verl-fsdp" else "Accelerate does",
    }.get(plan.best.target.backend)
    if who and c.grad_bytes > 2 and ranks > 1:
        yield (
            f"Gradients are added up in fp32 over micro-batches, and in {c.precision} between the {count(ranks)} "
            f"data-parallel ranks, as {who}."
        )


def beyond(plan: Plan) -> Iterator[str]:
    """Yield a sentence if the job's sequences are longer than the model's max_position_embeddings.

    For a model with rope it advises a larger rope_theta or a rope_scaling.
    """
    model, longest = plan.model, plan.job.beyond(plan.model)
    if not longest:
        return
    how = " Its rope is written as it is: give the model a larger rope_theta, or a rope_scaling, for a longer reach."
    yield (
        f"Sequences of {count(longest)} tokens are longer than the model's max_position_embeddings of "
        f"{count(model.max_position_embeddings)}: what was trained up to that has seen no later position."
        f"{how if model.position is Position.ROPE else ''}"
    )
