"""A plan made again, for a person: what was asked, what changes and why, what it means for the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from symconfig.descriptor.document import shorten
from symconfig.format import count, gib, percent, seconds, words
from symconfig.frameworks.known import BACKENDS
from symconfig.report import table
from symconfig.report.checkpoint import verdict
from symconfig.report.grid import Block, Grid
from symconfig.report.rl import whole_step
from symconfig.runs.checkpoint import Verdict
from symconfig.runs.replan.differences import Difference
from symconfig.runs.replan.near import Near
from symconfig.runs.replan.replan import Kept, Replan
from symconfig.runs.replan.schedule import Schedule

QUICKER = 5e-5  # share of a step from which on it is said
SHOWN = 12  # fields of a descriptor that are written out: --json has all


def blocks(found: Replan) -> list[Block]:
    """Everything that is shown, in order."""
    shown: list[Block] = [table.headline(found.new)]
    if found.near is not None and found.near.free:  # before all else: it has its checkpoint for nothing
        shown.append(_near(found.near, found.checkpoint.verdict))
    shown += _inputs(found)
    if found.kept is not None:
        shown += _kept(found.new, found.kept)
    shown += [*whole_step(found.new), _candidates(found), *_changes(found)]
    if found.near is not None and not found.near.free:
        shown.append(_near(found.near, found.checkpoint.verdict))
    shown += _schedule(found.schedule)
    shown += [_checkpoint(found), *verdict(found.checkpoint), *_command(found)]
    shown.append(_files(found))
    return [*shown, table.footer(found.new)]


def _inputs(found: Replan) -> Iterator[Block]:
    """What is asked for otherwise than before."""
    if found.inputs:
        yield values("What is asked for", found.inputs)
    else:
        yield "The job is the same as before."
    if found.edited:
        yield (
            f"Edited in the file: {', '.join(found.edited)}. The values before that are known only as far as the old "
            "answer shows them (degrees, batch); the verdict on the checkpoint takes all others as they stand now."
        )
    if found.drift is not None:
        d = found.drift
        yield (
            f"This symconfig predicts the old plan anew: a step of {seconds(d.now_s)} s instead of "
            f"{seconds(d.said_s)} s, {gib(d.now_bytes)} GiB instead of {gib(d.said_bytes)} GiB."
        )


def values(title: str, found: Sequence[Difference], most: int = SHOWN) -> Grid:
    """A row a field, with both its values."""
    rows = [(words(each.field), value(each.before), value(each.after)) for each in found[:most]]
    if len(found) > most:
        rows.append((f"and {count(len(found) - most)} more (--json has all)", "", ""))
    return Grid(("", "before", "now"), tuple(rows), left=(0, 1, 2), title=title)


def value(given: Any) -> str:
    """In few letters."""
    if given is None:
        return "-"
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, float):
        return f"{given:.6g}"
    if isinstance(given, Mapping) and not given:
        return "none"
    return shorten(str(given), 40)


def _candidates(found: Replan) -> Grid:
    """The old choice as its plan has it, the new one, and the runners-up of that."""
    after = ("now", *(str(number) for number in range(2, len(found.new.alternatives) + 2)))
    every = zip(after, (found.new.best, *found.new.alternatives), strict=True)
    return table.compared((("old", found.old.best), *every), marked=1)


def _changes(found: Replan) -> Iterator[Block]:
    """Each decision, and what it would cost to leave it; then the old choice as a whole."""
    changes = found.changes
    if changes.decisions:
        rows = tuple((each.said, str(each.kept)) for each in changes.decisions)
        yield Grid(("change", "if it alone stayed"), rows, left=(0, 1), title="What changes, and why")
    if any(each.kept.fits and each.kept.slower <= -QUICKER for each in changes.decisions):
        how = ": --keep vpp,layout has it" if found.old.best.options.pipeline_layout else ""
        yield f"The old layout of the stages was not among those that the search tried now, and is faster{how}."
    if changes.follows:
        yield "\n".join(("What follows from it", *(f"  {text}" for text in changes.follows)))
    if changes.decisions:
        yield f"Kept whole, the old plan {changes.stayed}."
    elif found.kept is None:
        yield "The old plan is still the best: the planner changes nothing."
    else:
        yield "The planner changes nothing."


def _kept(new: Any, kept: Kept) -> Iterator[Block]:
    pins = ", ".join(f"{name}={text}" for name, text in kept.pins.items())
    costs = "nothing" if kept.costs_s <= 0 else f"{seconds(kept.costs_s)} s a step ({percent(kept.share)})"
    yield Grid(
        *_two(table.compared((("free", kept.free.best), ("kept", new.best)), marked=1)),
        title=f"Keeping {pins} costs {costs}",
    )


def _two(grid: Grid) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...], tuple[int, ...]]:
    return grid.headers, grid.rows, grid.left


def _near(near: Near, new: Verdict) -> str:
    """new: what becomes of the checkpoint without it."""
    pins = ", ".join(f"{name}={text}" for name, text in near.pins.items())
    step = f"{seconds(near.plan.best.predicted.step_s)} s a step"
    takes = f"costs nothing ({step})" if near.free else f"takes {percent(near.slower)} longer, {step},"
    return (
        f"A plan nearer to the old one: --keep {','.join(near.pins)} ({pins}) {takes} and loads the checkpoint: "
        f"{near.verdict}, where this one loads it: {new}."
    )


def _schedule(schedule: Schedule) -> Iterator[Block]:
    """Iterations and learning rate."""
    if schedule.rescaled:
        rows = tuple(
            (
                words(each.field),
                count(each.before),
                count(each.after),
                f"{float(each.exact):.2f}" if each.exact.denominator != 1 else "",
            )
            for each in schedule.rescaled
        )
        yield Grid(
            ("iterations", "before", "now", "exactly"),
            rows,
            left=(0,),
            title="The schedule, of the same tokens as before",
        )
    if schedule.notes:
        yield "\n".join(f"{note[:1].upper()}{note[1:]}." for note in schedule.notes)


def _checkpoint(found: Replan) -> str:
    """The rules know what the framework's own programs do."""
    backend = found.new.best.target.backend
    whose = f", as {BACKENDS[backend].program} takes it" if found.targets[1] != backend else ""
    return f"The old plan's checkpoint ({found.checkpoint.kind}){whose}"


def _command(found: Replan) -> Iterator[str]:
    """How the run goes on, where there is anything to go on from."""
    if found.schedule.lost:
        yield (
            f"Step {count(found.schedule.lost)} is lost: the new run starts from its first step, and its schedule "
            "is that of a whole run."
        )
    target, backend = found.targets[1], found.new.best.target.backend
    if found.schedule.step and found.going_on is not None:
        yield f"To go on at step {count(found.schedule.step)}: {found.going_on}"
    elif found.schedule.step:
        yield (
            f"How {target} goes on at step {count(found.schedule.step)} is not known here: what is said above of "
            f"the checkpoint is of {BACKENDS[backend].program}, whose options {target} does not have."
        )
    elif target != backend and any(step.run == "new" for step in found.checkpoint.how):
        yield f"What the new run is told above are options of {BACKENDS[backend].program}, and not of {target}."


def _files(found: Replan) -> str:
    if found.files is None:
        old, new = found.targets
        other = f"All files are other ones: those of {new}, and not of {old}."
        return other if old != new else "Which files change depends on the target (--target)."
    if not found.files:
        return "No file of the old plan changes but plan.json."
    return f"Files that change besides plan.json: {', '.join(found.files)}."
