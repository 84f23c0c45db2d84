"""Experimental options: which of a framework's options a search may use, and which a plan does. Stable ones are used
unless the job is without them; others where they are allowed, pinned, or nothing fits without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np

from symconfig.descriptor.job import Job
from symconfig.errors import Problem, Right, among
from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.facts import Fixed
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.maturity import ALL, Maturity, Option, closed
from symconfig.frameworks.tables import options
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.plans.options import FIELD_OF_PIN
from symconfig.plans.plan import Candidate, Opened
from symconfig.solve.extras import facts
from symconfig.solve.pins import Pins

NOTHING_KNOWN = ConfigurationSet()


def excluded(job: Job, fixed: Fixed, pins: Pins, has: ConfigurationSet = NOTHING_KNOWN) -> tuple[Constraint, ...]:
    """Return the constraints that keep a search from some of a framework's options.

    Those in `job.without`, and those not stable in the job's release that the job does not allow (ALL: any) and neither
    its pins nor the columns `has` use.
    """
    known = options(job.backend)
    pinned = (one.name for one in known if _is_pinned(one, job, fixed, pins) or one.used(fixed, has))
    return closed(known, BACKENDS[job.backend].releases.of(job), (*job.allow, *pinned), job.without)


def problems(job: Job) -> Iterator[Problem]:
    """Yield a problem for each name in the job's `allow` and `without` that is no option of its framework.

    `allow` may also have ALL. The problem names similar options, or says that the framework has none.
    """
    known = [option.name for option in options(job.backend)]
    for field, names, more in (("allow", job.allow, [ALL]), ("without", job.without, [])):
        for name in names:
            if name not in (*known, *more):
                right: Right = {"need": "none: it has no options to open or close"}
                right = among(name, [*known, *more]) if known else right
                yield Problem("is no option of this framework", field=field, got=name, **right)


def needed(job: Job, fixed: Fixed, pins: Pins, fits: Callable[[Job], bool]) -> tuple[str, ...]:
    """Return the names of experimental options without which nothing fits; those in `job.without` are never among them.

    fits: whether a job has any plan; called repeatedly. Maturities are added in order until something fits. Of the last
    one only options each of which is enough with the maturities before are returned; all of it if no single one is. All
    excluded options if nothing fits with them either.
    """
    release = BACKENDS[job.backend].releases.of(job)
    names = {constraint.name for constraint in excluded(job, fixed, pins)} - set(job.without)
    known = {one.name: one.standing(release) for one in options(job.backend) if one.name in names and not one.asked}
    better = tuple[str, ...]()
    for maturity in Maturity:
        own = tuple(name for name, standing in known.items() if standing and standing.maturity is maturity)
        if own and fits(allowing(job, *better, *own)):
            return (*better, *(tuple(name for name in own if fits(allowing(job, *better, name))) or own))
        better = (*better, *own)
    return better


def allowing(job: Job, *names: str) -> Job:
    """Return a copy of the job that allows these options, too."""
    return job.model_copy(update={"allow": (*job.allow, *names)})


def used(job: Job, fixed: Fixed, pins: Pins, candidate: Candidate) -> Iterator[Opened]:
    """Yield the experimental options that a candidate uses and its job does not allow by name; pinned ones are marked.

    Nothing if the job allows all, and none for options that are not experimental in the job's release.
    """
    release, point = BACKENDS[job.backend].releases.of(job), candidate.configuration
    for option in options(job.backend):
        known = option.standing(release)
        if known is not None and not {option.name, ALL} & set(job.allow) and option.used(fixed, point):
            is_pinned = _is_pinned(option, job, fixed, pins)
            yield Opened(option.name, option.label, str(known.maturity), known.why, is_pinned)


def _is_pinned(option: Option, job: Job, fixed: Fixed, pins: Pins) -> bool:
    """Return whether every plan with these pins uses an option."""
    return option.used(fixed, _columns(job, pins))


def _columns(job: Job, pins: Pins) -> ConfigurationSet:
    """Return the columns that every plan with these pins has: words, the offloaded share, the sequence length, ranges.

    A range becomes an array along its own axis, up to the GPUs or the global batch, whichever is larger. A precision
    not pinned is the job's, else bf16. Columns that are None are left out.
    """
    most = max(int(job.gpus) if job.gpus != "auto" else 1, job.global_batch_size)
    axes, words = count(), dict[str, object](seq_length=job.seq_length)
    for name, (low, high) in pins.ranges.items():
        values, axis = np.arange(low, min(high, max(most, low)) + 1), next(axes)
        words[FIELD_OF_PIN.get(name, name)] = values.reshape(-1, *(1 for _ in range(axis)))
    for name in (*pins.words, "optimizer_offload"):
        words |= facts(pins, name)
    if words.get("precision", "auto") == "auto":
        words["precision"] = "bf16" if job.precision in (None, "auto") else job.precision
    return ConfigurationSet(**{name: value for name, value in words.items() if value is not None})
