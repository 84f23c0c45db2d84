"""What came of every start, kept as JSON beside the page that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from tools.pages import EVIDENCE
from tools.verify.training.cases import CASES, LEFT_OUT
from tools.verify.training.held import Held

OF_THEIR_OWN = {case.name for case in CASES if case.job}  # plans that each format has one of, with data of its own
HEAD = """# Every format, started for real

Written by `python -m tools verify training`. A tiny model is planned, written in a format and started on two ranks of
this machine as a person would: by the launch script of its folder, with the framework's own trainer. No GPU is there,
so ranks talk over gloo, and what only a GPU has is stood in for; the last table says what that was. A run has passed
when its losses are finite and fall, no step's gradient is 0 where the log has its norm, and steps, sequences of a step
and every step's learning rate are those of the plan. Formats of one plan train on the same data, on the same weights or
on those of the same seed: `apart` is the largest relative difference of a step's loss from that of the format that
stands first. Programs that make sequences of chats or answers in ways of their own are held against themselves, on one
rank, but for those whose losses are others there: KTO's, whose KL term is of a micro-batch on all ranks, and some of
models of rewards. What GRPO lowers is minus the mean reward, of samples that each start draws; adapters of random
weights move it by less than draws do, so theirs need not fall. `states` are the numbers whose optimizer state each rank
keeps, counted in the optimizer that steps; they are those whose bytes the plan predicts.

| plan | format | ranks | states | steps | sequences a step | first loss | last loss | apart | |
|---|---|---|---|---|---|---|---|---|---|
"""
HELD = """
## What workers hold and read

Counted on each rank in the second step, of the fullest one: bytes of its shards or buffers, micro-batches of each
optimizer step or read, and the allocator's peak, but for what gloo asks for. Predicted peaks are of the tokens that the
fullest micro-batch had, without cuBLAS's workspace; an update's of FSDP, on both sides, without the buffers of
all-gathers. Those of Megatron's workers (`verl`) are of Megatron-Core's own layers with flash attention, which ran here
in the place of Transformer Engine's, and have the weights and gradients that come back in the phase.

| plan | format | phase | what | predicted | counted |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Step:
    """One step as the framework's log says it. sequences, gradient (its norm): None where the log has none."""

    loss: float
    learning_rate: float
    sequences: float | None = None
    gradient: float | None = None


@dataclass(frozen=True)
class Outcome:
    """One format of one plan. said: what went wrong; overrides: what had to be other than in the folder; alone: its
    steps on one rank; states: numbers of which each rank keeps the optimizer's state, where that was counted; held:
    what its workers held and read."""

    format: str
    ranks: int
    steps: tuple[Step, ...] = ()
    said: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    alone: tuple[Step, ...] = ()
    states: tuple[int, ...] = ()
    held: tuple[Held, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.said


Results = dict[str, tuple[Outcome, ...]]
_READ = TypeAdapter(Results)


def apart(one: Sequence[Step], other: Sequence[Step]) -> float | None:
    """The largest relative difference of the losses of two runs, step by step."""
    if not one or len(one) != len(other):
        return None
    return max(abs(a.loss - b.loss) / abs(a.loss) for a, b in zip(one, other, strict=True))


def page(results: Mapping[str, tuple[Outcome, ...]]) -> str:
    """docs/evidence/training.md."""
    text = HEAD + "".join(_row(plan, item, outcomes[0]) for plan, outcomes in results.items() for item in outcomes)
    text += HELD + "".join(_held(results))
    text += "\n## What was other than in the folder\n\n| format | without a GPU |\n|---|---|\n"
    text += "".join(_overrides(results)) + "\n## What is not started here\n\n"
    return text + "".join(f"- {name}: {why}.\n" for name, why in LEFT_OUT.items())


def _held(results: Mapping[str, tuple[Outcome, ...]]) -> Iterator[str]:
    for plan, outcomes in results.items():
        for item in outcomes:
            for each in item.held:
                yield (
                    f"| {plan} | {item.format} | {each.phase} | {each.what} | {each.predicted:,.0f} | "
                    f"{each.counted:,.0f} |\n"
                )


def _row(plan: str, item: Outcome, first: Outcome) -> str:
    state = "passed" if item.passed else f"**failed**: {' '.join(item.said)}"
    if not item.steps:
        return f"| {plan} | {item.format} | {item.ranks} | | 0 | | | | | {state} |\n"
    sequences = sorted({f"{step.sequences:g}" for step in item.steps if step.sequences is not None})
    other = item.alone or (() if plan in OF_THEIR_OWN or item is first else first.steps)
    gap = apart(other, item.steps)
    shown = "" if gap is None else f"{gap:.1e}" if gap else "0"
    return (
        f"| {plan} | {item.format} | {item.ranks} | {', '.join(f'{count:,}' for count in sorted(set(item.states)))} | "
        f"{len(item.steps)} | {', '.join(sequences)} | "
        f"{item.steps[0].loss:.4f} | {item.steps[-1].loss:.4f} | {shown} | {state} |\n"
    )


def _overrides(results: Mapping[str, tuple[Outcome, ...]]) -> Iterator[str]:
    every = [item for outcomes in results.values() for item in outcomes]
    for name in dict.fromkeys(item.format for item in every):
        said = dict.fromkeys(text for item in every if item.format == name for text in item.overrides)
        yield f"| {name} | {'; '.join(said) or 'nothing'} |\n"


def _known(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if value is not None}


def read(docs: Path = EVIDENCE) -> Results:
    kept = docs / "training.json"
    return _READ.validate_json(kept.read_bytes()) if kept.exists() else {}


def record(
    results: Mapping[str, tuple[Outcome, ...]], order: Mapping[str, tuple[str, ...]], docs: Path = EVIDENCE
) -> None:
    """Put these runs beside those that are known, in the `order` of plans and formats, and write the page anew."""
    every = {
        (plan, item.format): item
        for known in (read(docs), results)
        for plan, outcomes in known.items()
        for item in outcomes
    }
    kept = {
        plan: tuple(every[plan, name] for name in formats if (plan, name) in every) for plan, formats in order.items()
    }
    kept = {plan: outcomes for plan, outcomes in kept.items() if outcomes}
    data = {plan: [asdict(item, dict_factory=_known) for item in outcomes] for plan, outcomes in kept.items()}
    (docs / "training.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (docs / "training.md").write_text(page(kept), encoding="utf-8")
