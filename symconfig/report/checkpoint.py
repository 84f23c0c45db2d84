"""What a checkpoint is, and whether a plan's run can go on from it."""

from __future__ import annotations

from symconfig.format import count, gib
from symconfig.report.grid import Block, Grid, present, titled
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
    """Return the head line of a checkpoint (kind, iteration if known, size), a table of its releases, degrees and saved
    arguments that are known, and its notes.
    """
    where = "" if checkpoint.iteration is None else f", iteration {count(checkpoint.iteration)}"
    size = checkpoint.size_bytes
    amount = f"{gib(size)} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"
    releases = " to ".join(filter(None, dict.fromkeys((checkpoint.since, checkpoint.until))))
    head = f"{checkpoint.folder}: {checkpoint.kind}{where}, {amount}"
    facts = {"written by": releases or None, **checkpoint.degrees, **checkpoint.says}
    rows = tuple((name, str(value)) for name, value in facts.items() if value is not None)
    return present(head, Grid(("of the run", "value"), rows, left=(0,)), *checkpoint.notes)


def sentence(verdict: Verdict) -> str:
    """Return a verdict as a sentence with the checkpoint as "it"."""
    return _SENTENCES[verdict]


def verdict(loadable: Loadable) -> list[Block]:
    """Return whether a checkpoint loads, the steps, what starts anew and why (empty parts left out); if it must be
    converted, also the alternative without a conversion, with its steps.
    """
    blocks = [f"{loadable.verdict.value.capitalize()}: {sentence(loadable.verdict)}", *steps(loadable.how)]
    if loadable.verdict is Verdict.CONVERTED:
        blocks += [OTHERWISE[loadable.otherwise], *steps(loadable.otherwise_how)]
    why = titled("Why:", (f"{reason.text} [{reason.source}]" for reason in loadable.reasons), "- ")
    return present(*blocks, titled("Starts anew:", loadable.lost, "- "), why)


def steps(how: tuple[Step, ...]) -> list[str]:
    """Return each step as text, its command or options on a line of their own."""
    return [f"{_RUNS[step.run].capitalize()} {step.does}:\n  {step.words}" for step in how]
