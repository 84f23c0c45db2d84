"""What a new plan does otherwise than the old one, and what each of it would cost if it stayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from symconfig.existing.audit.steps import DECISIONS, changes, differs, moved
from symconfig.plans.plan import Plan
from symconfig.runs.replan.carried import Verdict, carried, judged
from symconfig.solve.configuration import Configuration

SEQUENCE = "sequence parallel"  # of the decisions


@dataclass(frozen=True, slots=True)
class Change:
    """One decision. text: `tp 4 -> 8`; kept: the new plan with this decision alone as it was."""

    decision: str
    text: str
    kept: Verdict


@dataclass(frozen=True, slots=True)
class Changes:
    """Decisions that are others now; what follows from inputs and decisions by arithmetic, in words.

    stayed: the old choice as a whole under the new inputs.
    """

    decisions: tuple[Change, ...]
    follows: tuple[str, ...]
    stayed: Verdict


def changed(old: Plan, new: Plan) -> Changes:
    """Compare two plans: every reason is an evaluation under the new plan's inputs."""
    before, after = carried(old.best, new), carried(new.best, new)
    return Changes(tuple(_decisions(before, after, new)), tuple(_follows(old, new)), judged(new, before))


def _decisions(before: Configuration, after: Configuration, new: Plan) -> Iterator[Change]:
    """Yield decisions that mean something among the others as they are now. Sequence parallelism goes with the tensor
    parallelism that it belongs to."""
    other = [name for name in DECISIONS if differs(name, before, after)]
    if "tp" in other and SEQUENCE in other:
        other.remove(SEQUENCE)
    for name in other:
        back = moved(after, before, (name, SEQUENCE) if name == "tp" else (name,))
        if reason := changes(back, after):
            yield Change(name, ", ".join(reason), judged(new, back))


def _follows(old: Plan, new: Plan) -> Iterator[str]:
    """Yield what follows: data parallelism and accumulation have no choice of their own."""
    was, now = old.best, new.best
    if was.parallel.dp != now.parallel.dp:
        p = now.parallel
        yield (f"dp {was.parallel.dp} -> {p.dp}: {p.world_size} GPUs over tp x pp x cp = {p.tp * p.pp * p.cp}")
    if was.batch.num_microbatches != now.batch.num_microbatches:
        b = now.batch
        yield (
            f"accumulation {was.batch.num_microbatches} -> {b.num_microbatches}: {b.global_} sequences over dp x "
            f"micro-batch = {now.parallel.dp * b.micro}"
        )
