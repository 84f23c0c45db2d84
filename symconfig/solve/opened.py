"""Which options of its framework a search may use: those that are stable, allowed, asked for by a pin, or needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, takewhile

import numpy as np

from symconfig.descriptor.job import Job
from symconfig.errors import Problem, Right, among
from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.facts import Fixed
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.maturity import ALL, Maturity, Option, Standing, closed
from symconfig.frameworks.tables import options
from symconfig.plans.columns import Columns
from symconfig.plans.plan import Candidate, Opened
from symconfig.solve.extras import facts
from symconfig.solve.pins import COLUMN, Pins

NOTHING_KNOWN = Columns()
_OPENED_IN_TURN = (Maturity.UNUSUAL, Maturity.YOUNG, Maturity.CHANGES_NUMBERS, Maturity.DEFECT)


def shut(job: Job, fixed: Fixed, pins: Pins, has: Columns = NOTHING_KNOWN) -> tuple[Constraint, ...]:
    """Return what a search of this job may not use, though its framework could. has: what a run has on already."""
    known = options(job.backend)
    allow = (
        *job.allow,
        *(option.name for option in known if _asked_for(option, job, fixed, pins) or option.used(fixed, has)),
    )
    return closed(known, BACKENDS[job.backend].releases.of(job), allow, job.without)


def problems(job: Job) -> Iterator[Problem]:
    """Yield what is wrong with the options that a job names."""
    known = [option.name for option in options(job.backend)]
    for field, names, more in (("allow", job.allow, [ALL]), ("without", job.without, [])):
        for name in names:
            if name not in (*known, *more):
                right: Right = {"need": "none: it has no options to open or close"}
                right = among(name, [*known, *more]) if known else right
                yield Problem("is no option of this framework", field=field, got=name, **right)


def needed(job: Job, fixed: Fixed, pins: Pins, fits: Callable[[Job], bool]) -> Iterator[tuple[str, ...]]:
    """Yield the options without which nothing fits, of the best maturity that there is: those of which each is enough
    alone, else beside all better ones, else all. Then those of each maturity behind it of which each is enough alone,
    but for known defects.

    fits: whether there is any plan of a job.
    """
    release = BACKENDS[job.backend].releases.of(job)
    names = {constraint.name for constraint in shut(job, fixed, pins)} - set(job.without)
    better: tuple[str, ...] = ()
    grades: list[_Grade] = []
    for maturity in _OPENED_IN_TURN:
        mine = tuple(
            option.name
            for option in options(job.backend)
            if option.name in names and (known := option.standing(release)) and known.maturity is maturity
        )
        if mine:
            grades.append(_Grade(maturity, better, mine))
            better = (*better, *mine)
    # With more options there are more plans. The first plan that fits shows it, and only a whole search that none does:
    # from all options down only one search is whole.
    enough = list(takewhile(lambda grade: fits(allowing(job, *grade.better, *grade.mine)), reversed(grades)))[::-1]
    if not enough:
        yield better
    for place, grade in enumerate(enough):
        if place == 0:
            enough_alone = grade.alone(job, fits) or (grade.better and grade.alone(job, fits, grade.better))
            yield enough_alone or (*grade.better, *grade.mine)
        elif grade.maturity is not Maturity.DEFECT and (more := grade.alone(job, fits)):
            yield more


@dataclass(frozen=True, slots=True)
class _Grade:
    """The options of one maturity, and those of all better ones."""

    maturity: Maturity
    better: tuple[str, ...]
    mine: tuple[str, ...]

    def alone(self, job: Job, fits: Callable[[Job], bool], others: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return those of which each makes something fit alone, or beside others, with these; none where none does."""
        enough = tuple(name for name in self.mine if fits(allowing(job, *others, name)))
        return (*others, *enough) if enough else ()


def allowing(job: Job, *names: str) -> Job:
    """Return the job with more options open."""
    return job.model_copy(update={"allow": (*job.allow, *names)})


def used(job: Job, fixed: Fixed, pins: Pins, candidate: Candidate) -> tuple[Opened, ...]:
    """Return the options of a plan that are not stable and that its job does not allow by name."""
    return tuple(
        Opened(option.name, option.label, str(known.maturity), known.why, _asked_for(option, job, fixed, pins))
        for option, known in unstable(job, fixed, Columns.of(candidate))
    )


def unstable(job: Job, fixed: Fixed, point: Columns) -> Iterator[tuple[Option, Standing]]:
    """Yield the options of a point that are not stable and that its job does not allow by name, with what is known."""
    release = BACKENDS[job.backend].releases.of(job)
    for option in options(job.backend):
        known = option.standing(release)
        if known is not None and not {option.name, ALL} & set(job.allow) and option.used(fixed, point):
            yield option, known


def _asked_for(option: Option, job: Job, fixed: Fixed, pins: Pins) -> bool:
    """Tell whether every plan with these pins uses it."""
    return option.used(fixed, _pinned(job, pins))


def _pinned(job: Job, pins: Pins) -> Columns:
    """Return what pins say of every plan: each range of numbers along an axis of its own."""
    most = max(int(job.gpus) if job.gpus != "auto" else 1, job.global_batch_size)
    axes, words = count(), dict[str, object](seq_length=job.seq_length)
    for name, (low, high) in pins.ranges.items():
        values, axis = np.arange(low, min(high, max(most, low)) + 1), next(axes)
        words[COLUMN.get(name, name)] = values.reshape(-1, *(1 for _ in range(axis)))
    for name in (*pins.words, "optimizer_offload"):
        words |= facts(pins, name)
    if pins.layout is not None:
        words["empty_chunks"] = words["uneven_chunks"] = True
    if words.get("precision", "auto") == "auto":
        words["precision"] = "bf16" if job.precision in (None, "auto") else job.precision
    return Columns(**{name: value for name, value in words.items() if value is not None})
