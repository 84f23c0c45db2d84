"""What a checkpoint is, and whether a plan's run can go on from it."""

from __future__ import annotations

from symconfig.format import count, gib
from symconfig.report.grid import Block, Grid
from symconfig.runs.checkpoint import Checkpoint, Loadable, Step, Verdict
from symconfig.units import GIB, MIB

_RUNS = {"old": "the old run, once more,", "between": "between the runs,", "new": "the new run"}
_SENTENCES = {
    Verdict.AS_IS: "It loads as it is.",
    Verdict.RESHARDED: "It loads; each rank reads its part of another layout.",
    Verdict.CONVERTED: "It loads after a conversion.",
    Verdict.WEIGHTS: "Its weights load, and nothing else.",
    Verdict.NO: "It does not load.",
}
OTHERWISE = {
    Verdict.WEIGHTS: "Without the conversion its weights load, and nothing else:",
    Verdict.NO: "Without the conversion nothing loads.",
}


def contents(checkpoint: Checkpoint) -> list[Block]:
    """Show what `read` returned of a checkpoint."""
    where = "" if checkpoint.iteration is None else f", iteration {count(checkpoint.iteration)}"
    size = checkpoint.size_bytes
    amount = f"{gib(size)} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"
    releases = " to ".join(filter(None, dict.fromkeys((checkpoint.since, checkpoint.until))))
    head = f"{checkpoint.folder}: {checkpoint.kind}{where}, {amount}"
    rows = [
        (name, str(value))
        for name, value in (*checkpoint.degrees.items(), *checkpoint.says.items())
        if value is not None
    ]
    if releases:
        rows.insert(0, ("written by", releases))
    return [head, *([Grid(("of the run", "value"), tuple(rows), left=(0,))] if rows else []), *checkpoint.notes]


def sentence(verdict: Verdict) -> str:
    """Say a verdict of the checkpoint, which is `it`."""
    return _SENTENCES[verdict]


def verdict(loadable: Loadable) -> list[Block]:
    """Show whether it loads, how, what is lost and why."""
    blocks = [f"{loadable.verdict.value.capitalize()}: {sentence(loadable.verdict)}", *steps(loadable.how)]
    if loadable.verdict is Verdict.CONVERTED:
        blocks += [OTHERWISE[loadable.otherwise], *steps(loadable.otherwise_how)]
    if loadable.lost:
        blocks.append("\n".join(("Starts anew:", *(f"- {what}" for what in loadable.lost))))
    if loadable.reasons:
        blocks.append("\n".join(("Why:", *(f"- {reason.text} [{reason.source}]" for reason in loadable.reasons))))
    return list(blocks)


def steps(how: tuple[Step, ...]) -> list[str]:
    """Write each step with its words on a line of their own, to be copied."""
    return [f"{_RUNS[step.run].capitalize()} {step.does}:\n  {step.words}" for step in how]
