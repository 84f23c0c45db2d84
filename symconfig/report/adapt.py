"""What adapting somebody's files came to, beside the diff."""

from __future__ import annotations

from symconfig.report import checkpoint
from symconfig.report.grid import Block, present, titled
from symconfig.runs.adaptation import Adaptation, Fate
from symconfig.runs.checkpoint import Verdict

MOST_REASONS = 3  # of a checkpoint, the worst first; `symconfig checkpoint` says all
_PLACEHOLDER = "CHECKPOINT"  # of a folder, in the steps of a checkpoint's rules


def blocks(outcome: Adaptation, plan: str) -> list[Block]:
    """Return the report of an adaptation: changes, what was not done, errors of its audit, checkpoints, notes; empty
    parts are left out.

    plan: the plan's file as the user named it, for commands.
    """
    return present(
        titled("Changed", (f"{change}." for change in outcome.changes)),
        titled("Not done", (f"{item}." for item in outcome.unplaced)),
        titled("An audit of the result finds errors", outcome.flaws),
        *(fated(fate, plan) for fate in outcome.fates),
        titled("Worth knowing", outcome.notes),
    )


def fated(fate: Fate, plan: str) -> str:
    """Return the text on one folder's checkpoint: verdict, steps, what restarts, and up to MOST_REASONS reasons;
    what to try if it is unknown.
    """
    head = f"{fate.place}: {fate.option} {fate.folder}".rstrip()
    if fate.answer is None:
        return (
            f"The old checkpoint\n  {head}: whether the run goes on from it is not known, because {fate.why}. "
            f"Try: symconfig checkpoint {fate.folder or 'DIR'} --plan {plan}."
        )
    answer = fate.answer
    source = "what lies there" if fate.seen else "what this configuration saved"
    lines = [f"  {head} ({answer.kind}, by {source}): {checkpoint.sentence(answer.verdict)}"]
    if not fate.loads:
        lines.append(
            "  Nothing in these files loads it: unless its program does, the run starts anew and saves beside it."
        )
    lines += (_filled(line, fate.folder) for step in checkpoint.steps(answer.how) for line in _indented(step))
    if answer.verdict is Verdict.CONVERTED:
        lines.append(f"  {checkpoint.OTHERWISE[answer.otherwise]}")
        lines += (
            _filled(line, fate.folder) for step in checkpoint.steps(answer.otherwise_how) for line in _indented(step)
        )
    if answer.verdict is Verdict.NO:
        lines.append("  What to do: start anew with an empty folder, or keep the old layout until the run is over.")
    lines += (f"  Starts anew: {what}." for what in answer.lost)
    lines += (f"  Why: {reason.text}." for reason in answer.reasons[:MOST_REASONS])
    return "\n".join(("The old checkpoint", *lines))


def _indented(step: str) -> list[str]:
    return [f"  {line}" for line in step.split("\n")]


def _filled(line: str, folder: str) -> str:
    return line.replace(_PLACEHOLDER, folder)
