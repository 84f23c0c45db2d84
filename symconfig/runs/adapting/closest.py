"""Plans that the cost model cannot tell apart, and which of them changes a person's files least."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from symconfig.errors import InputError, SymconfigError
from symconfig.existing.adapt.draft import Draft, Progress
from symconfig.existing.adapt.files import placed
from symconfig.existing.adapt.outcome import Best
from symconfig.existing.audit.steps import DECISIONS, differs, moved
from symconfig.plans.plan import Candidate, Plan
from symconfig.runs.replan import keep
from symconfig.runs.replan.carried import candidate, carried, judged
from symconfig.solve.choice.choose import TOLD_APART

# Decisions of an old run that a plan may keep where that costs nothing: how it is split and what it recomputes, never
# its number formats or what runs beside what.
_KEPT = tuple(name for name in DECISIONS if name not in ("precision", "overlap"))
_WITH_TP = "sequence parallel"


@dataclass(frozen=True, slots=True)
class Pick:
    """A plan for the files. lines: of them that change, before an audit's mends. slower: its step over the fastest
    close plan's, less one. others: how many close plans there are beside it. fastest_lines: lines that the fastest
    changes. kept: it is none of the file's plans, but one of them with more of the old run."""

    plan: Plan
    lines: int
    slower: float
    others: int
    fastest_lines: int
    kept: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "best": self.plan.best.to_dict(),
            "lines": self.lines,
            "slower": self.slower,
            "others": self.others,
            "fastest_lines": self.fastest_lines,
            "kept": self.kept,
        }


@dataclass(frozen=True, slots=True)
class _Tried:
    candidate: Candidate
    kept: bool
    progress: Progress
    lines: int


def picks(draft: Draft, plan: Plan, old: Plan | None, best: Best) -> tuple[Pick, ...]:
    """Return plans in the order in which they are to be tried, the plan's own among them.

    draft: of the files as they are. old: the run that they say. Raises InputError where the files are for another model
    or framework.
    """
    if best == "planned":
        return (Pick(plan, _lines(draft, placed(draft, plan)), 0.0, 0, 0, False),)
    tried = list(_tried(draft, plan, old))
    fastest = min(tried, key=lambda each: each.candidate.predicted.step_s)
    if best == "fastest":
        order = [fastest, *(each for each in tried if each.candidate == plan.best and each is not fastest)]
    else:
        order = sorted(
            tried, key=lambda each: (len(each.progress.unplaced), each.lines, each.candidate.predicted.step_s)
        )
    least_s = fastest.candidate.predicted.step_s
    return tuple(
        Pick(
            plan=replace(plan, best=each.candidate),
            lines=each.lines,
            slower=each.candidate.predicted.step_s / least_s - 1,
            others=len(tried) - 1,
            fastest_lines=fastest.lines,
            kept=each.kept,
        )
        for each in order
    )


def _tried(draft: Draft, plan: Plan, old: Plan | None) -> Iterator[_Tried]:
    """Yield the plan's own choice first, then what is close to it. Raises InputError of the plan's own alone."""
    mine = placed(draft, plan)
    yield _Tried(plan.best, False, mine, _lines(draft, mine))
    for kept, one in _close(plan, old):
        try:
            progress = placed(draft, replace(plan, best=one))
        except SymconfigError:  # what the target cannot be told
            continue
        yield _Tried(one, kept, progress, _lines(draft, progress))


def _close(plan: Plan, old: Plan | None) -> Iterator[tuple[bool, Candidate]]:
    """Yield the other plans of the file that cannot be told from its best one, and the best ones with as much of the
    old run as costs nothing that can be told."""
    every = [plan.best, *filter(None, (plan.beside.simplest, plan.beside.fastest)), *plan.alternatives]
    equal = [one for one in every if one.target.backend == plan.best.target.backend and _equals(one, plan)]
    seen = [plan.best]
    for one in equal:
        if one not in seen:
            seen.append(one)
            yield False, one
    for one in seen[:] if old is not None else ():
        kept = _keeping(replace(plan, best=one), old) if old is not None else None
        if kept is not None and kept not in seen:
            seen.append(kept)
            yield True, kept


def _equals(one: Candidate, plan: Plan) -> bool:
    """Tell whether it equals the plan's best: by what each is expected to lose, or by the step alone."""
    best = plan.best
    if one.judged is not None and best.judged is not None:
        return one.judged.expected_loss <= best.judged.expected_loss + TOLD_APART
    return one.predicted.step_s <= (1 + TOLD_APART) * plan.fastest.predicted.step_s


def _keeping(plan: Plan, old: Plan) -> Candidate | None:
    """Return the plan's best with the old run's decisions in place of its own, one after the other, the cheapest first,
    as long as the step cannot be told from the fastest."""
    try:
        target, now = carried(old.best, plan), carried(plan.best, plan)
    except InputError:
        return None
    mine = judged(plan, now)  # not what the file says: another release may have predicted it
    best_s = mine.step_s * min(1.0, plan.fastest.predicted.step_s / plan.best.predicted.step_s)
    most_s, changed = (1 + TOLD_APART) * best_s, False
    while mine.fits:
        kept = []
        for name in (each for each in _KEPT if differs(each, now, target)):
            then = moved(now, target, (name, _WITH_TP) if name == "tp" else (name,))
            verdict = judged(plan, then)
            if then != now and verdict.fits and verdict.step_s <= most_s:
                kept.append((verdict.step_s, name, then))
        if not kept:
            break
        now, changed = min(kept, key=lambda each: each[:2])[2], True
    one = candidate(plan, now) if changed else None
    return one if one is not None and _as_pinned(one, plan) else None


def _as_pinned(one: Candidate, plan: Plan) -> bool:
    """Tell whether the plan has all pinned choices as they were pinned."""
    try:
        return keep.pins(one, list(plan.job.pins)) == keep.pins(plan.best, list(plan.job.pins))
    except InputError:  # what a pin cannot say of either
        return False


def _lines(draft: Draft, progress: Progress) -> int:
    """Count the lines that change: those taken away, or those put in where they are more."""
    before: Mapping[str, bytes] = {text.file: text.data for text in draft.reading.texts}
    return sum(changed_lines(before[file], data) for file, data in progress.draft.files.items() if file in before)


def changed_lines(before: bytes, after: bytes) -> int:
    """Count the lines in which two versions of a file differ."""
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    return sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal")
