"""Whether a plan stays the best: over ranges of a value (`64..4096`, `0.5..2x`), and when the job changes.

Over a range it is planned at several values, and again between two that differ, to the border. A changed job is solved
as `replan` solves it, and the old plan judged under it: SymTensor's adaptability, what a strategy costs that was right
before the change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from symconfig.descriptor.cluster import NETWORK, ClusterDescriptor
from symconfig.descriptor.document import Document, plain
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import validate
from symconfig.errors import InfeasibleError, InputError, Problem, Problems, SymconfigError, nearest
from symconfig.plans.plan import Candidate, Plan
from symconfig.runs.adapted import bare
from symconfig.runs.best import best_plan
from symconfig.runs.replan.changes import Judgement, carried, judged
from symconfig.runs.replan.diff import revised

FIELD = "--vary"
MOST = 2**24  # sequences or tokens
LEAST_FACTOR, MOST_FACTOR = 0.01, 100.0
_NUMBER = r"(?:\d{1,18}(?:\.\d{1,18})?|\.\d{1,18})(?:[eE][+-]?\d{1,2})?"
_RANGE = re.compile(rf"(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})(?P<times>x?)", re.ASCII)
_NEED = "NAME=LOW..HIGH, as global_batch_size=64..4096 or network=0.5..2x"
SIZES = ("global_batch_size", "seq_length")


@dataclass(frozen=True, slots=True)
class Vary:
    """A varied name with its range. step: distance of allowed whole numbers; 0: values are factors. now: the plan's
    own value.
    """

    name: str
    low: float
    high: float
    step: int
    now: float

    @property
    def whole(self) -> bool:
        """Return whether values are whole numbers, not factors."""
        return self.step > 0

    def between(self, low: float, high: float) -> float | None:
        """Return the value halfway between two by ratio, on the grid of `step` and strictly between; None if they are
        adjacent steps, or factors within 1e-3.
        """
        if not self.whole:
            return None if high / low <= 1.0 + 1e-3 else math.sqrt(low * high)
        steps = round((high - low) / self.step)
        if steps <= 1:
            return None
        middle = round((math.sqrt(low * high) - low) / self.step)
        return low + self.step * min(max(middle, 1), steps - 1)

    def samples(self, count: int) -> list[float]:
        """Return the ends and about `count` - 2 values between, evenly spaced by ratio and rounded to the grid, and
        `now` if in range and on the grid; sorted, unique.
        """
        ratio = self.high / self.low
        even = [self.low * ratio ** (place / (count - 1)) for place in range(1, count - 1)]
        inner = [
            self.low + self.step * round((value - self.low) / self.step) if self.whole else value for value in even
        ]
        reached = not self.whole or (self.now - self.low) % self.step == 0
        own = [self.now] if self.low <= self.now <= self.high and reached else []
        return sorted({self.low, self.high, *inner, *own})


RATES = ("network", "links", "compute", "memory_bandwidth", "memory")


def _faster(cluster: ClusterDescriptor, name: str, factor: float) -> ClusterDescriptor:
    """Return the cluster with one of RATES multiplied: the bandwidths of all levels outside of nodes (network) or
    inside (links), all peaks of the GPU (compute), its memory's bandwidth or size.
    """
    data = cluster.model_dump(by_alias=True)
    levels, gpu = data["levels"], data["gpu"]
    quantities = {
        "network": [level["bandwidth_bytes_per_s"] for level in levels if level["name"] in NETWORK],
        "links": [level["bandwidth_bytes_per_s"] for level in levels if level["name"] not in NETWORK],
        "compute": [peak for peak in gpu["peak_flops"].values() if peak is not None],
        "memory_bandwidth": [gpu["memory_bandwidth_bytes_per_s"]],
        "memory": [gpu["memory_bytes"]],
    }
    for quantity in quantities[name]:
        quantity["value"] *= factor
    return ClusterDescriptor.model_validate(data)


def varied(plan: Plan, words: Sequence[str]) -> tuple[Vary, ...]:
    """Return the ranges of texts `NAME=LOW..HIGH` as `_one` reads each: of SIZES of the job or RATES of the cluster.
    Raises InputError with the first problem of each text, names given twice, or for no text.
    """
    problems = Problems()
    varies = tuple(filter(None, [problems.collect(partial(_one, plan, word)) for word in words]))
    twice = sorted(one for one, other in pairwise(sorted(each.name for each in varies)) if one == other)
    problems.add(*(Problem("is varied twice", field=FIELD, got=name, need="one range") for name in twice))
    if not words:
        problems.add(Problem("nothing is varied", field=FIELD, need=_NEED))
    problems.check()
    return varies


def _one(plan: Plan, word: str) -> Vary:
    """Return the range of one text `NAME=LOW..HIGH`, with an x at the end if NAME is a rate. Raises InputError with its
    first problem. seq_length cannot be varied with the job's `sequences`, nor any size with `rl`.

    Rates have step 0 and now 1. Sizes are narrowed to multiples at which the plan's degrees can run, of which at least
    two must remain: whole micro-batches on all replicas (and pipeline stages with vpp > 1), and sequences divisible by
    128 and 2 x cp x tp.
    """
    name, _, text = (part.strip() for part in word.partition("="))
    section = dict.fromkeys(SIZES, "rl") if plan.job.rl is not None else {}
    if plan.job.sequences is not None:
        section = {"seq_length": "sequences", **section}
    able = [each for each in (*SIZES, *RATES) if each not in section]
    if name not in able:
        what = f"follows from the section {section[name]}" if name in section else "cannot be varied"
        raise InputError(what, field=FIELD, got=name, need=f"one of {', '.join(able)}", hint=nearest(name, able))
    match, factor = _RANGE.fullmatch(text), name in RATES
    low, high = (float(match[end]) for end in ("low", "high")) if match else (0.0, 0.0)
    if factor:
        need = f"{name}=0.5..2x, factors from {LEAST_FACTOR:g} to {MOST_FACTOR:g}"
        right = LEAST_FACTOR <= low < high <= MOST_FACTOR
    else:
        need = f"{name}=64..4096, whole numbers up to {MOST:,}"
        right = 0 < low < high <= MOST and low % 1 == high % 1 == 0
    if match is None or not right or bool(match["times"]) is not factor:
        raise InputError("is no range", field=FIELD, got=word, need=need)
    if factor:
        return Vary(name, low, high, 0, 1.0)
    c = plan.best.configuration
    if name == "global_batch_size":
        step, now = c.micro * c.dp * (c.pp if c.vpp > 1 else 1), c.global_batch
    else:
        step, now = math.lcm(128, 2 * c.cp * c.tp), c.seq_length
    first, last = math.ceil(low / step) * step, math.floor(high / step) * step
    if first >= last:
        what = f"holds less than two values at which this plan can run, multiples of {step}"
        raise InputError(what, field=f"{FIELD} {name}", got=f"{low:g}..{high:g}", need="a wider range")
    return Vary(name, float(first), float(last), step, float(now))


SAMPLES = 7  # values that are planned before borders are looked for
NOTHING = "no plan fits"


@dataclass(frozen=True, slots=True)
class Answer:
    """The best plan at some values. name: its choices, which identify it. step_s: of the whole step; None if no plan
    fits.
    """

    name: str
    step_s: float | None


@dataclass(frozen=True, slots=True)
class Span:
    """A range of values with the same best plan, as far as searched. answer: at `low`; high_s: its step in seconds
    at `high`.
    """

    low: float
    high: float
    answer: Answer
    high_s: float | None


@dataclass(frozen=True, slots=True)
class Line:
    """The spans of one varied name, by rising value; all else is as in the plan."""

    vary: Vary
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The spans of all varied names. now: the plan itself; plans: searches run."""

    now: Answer
    lines: tuple[Line, ...]
    plans: int


def named(candidate: Candidate) -> str:
    """Return the text that identifies a plan: degrees above 1, dp, micro-batch, ZeRO stage, recomputation (without
    modules), and whether optimizer state is on the host. Candidates with the same text count as the same plan.
    """
    c = candidate.configuration
    degrees = [f"{name} {value}" for name in ("tp", "pp", "vpp", "cp", "ep", "etp") if (value := getattr(c, name)) > 1]
    layers = f" {c.recompute_layers}" if c.recompute == "full" else ""
    rest = [f"dp {c.dp}", f"micro {c.micro}", f"zero {c.zero_stage}", f"recompute {c.recompute}{layers}"]
    return ", ".join([*degrees, *rest, *(["optimizer in host memory"] if c.optimizer_offload else [])])


@dataclass(slots=True)
class _Planner:
    """Solves the job at changed values and caches each answer in `known`; calls `progress` with the number of
    searches.
    """

    plan: Plan
    progress: Callable[[int], None]
    known: dict[tuple[tuple[str, float], ...], Answer] = field(default_factory=dict)

    def at(self, **values: float) -> Answer:
        """Return the answer for the job with some values changed: sizes (rounded) of the job, or factors on the
        cluster's rates (RATES), by name. It is NOTHING with `step_s` None if nothing fits or the job is refused.
        """
        if (key := tuple(values.items())) in self.known:
            return self.known[key]
        cluster, job = self.plan.cluster, self.plan.job
        for name, value in values.items():
            if name in RATES:
                cluster = _faster(cluster, name, value)
            else:
                job = job.model_copy(update={name: round(value)})
        try:
            plan = best_plan(self.plan.model, cluster, job, top=1)
            step_s = plan.steps[0].step_s if plan.steps else plan.best.predicted.step_s
            self.known[key] = Answer(named(plan.best), step_s)
        except (InfeasibleError, InputError):
            self.known[key] = Answer(NOTHING, None)
        self.progress(len(self.known))
        return self.known[key]


def whatif(plan: Plan, varies: tuple[Vary, ...], progress: Callable[[int], None]) -> WhatIf:
    """Return the spans of each varied name, all else as in the plan. Intervals between samples whose ends have
    different best plans are bisected until the border is known to one step, or a factor to 1e-3. A plan that is best
    only between two values searched is missed. progress: called with the number of searches after each.
    """
    planner = _Planner(plan, progress)
    now = planner.at()
    lines = tuple(Line(vary, tuple(_spans(planner, vary))) for vary in varies)
    return WhatIf(now, lines, len(planner.known))


def _spans(planner: _Planner, vary: Vary) -> list[Span]:
    """Return the spans of values with the same best plan, rising: SAMPLES values, with each border refined by
    bisection. A span's answer is that at its low end.
    """
    values = vary.samples(SAMPLES)
    points = [values[0]]
    for value in values[1:]:
        points += _between(planner, vary, points[-1], value)
    spans: list[Span] = []
    for value in points:
        answer = planner.at(**{vary.name: value})
        if spans and spans[-1].answer.name == answer.name:
            spans[-1] = Span(spans[-1].low, value, spans[-1].answer, answer.step_s)
        else:
            spans.append(Span(value, value, answer, answer.step_s))
    return spans


def _between(planner: _Planner, vary: Vary, low: float, high: float) -> list[float]:
    """Return the values after `low` up to `high`: `high` alone if both have the same best plan or nothing is between
    (`Vary.between`), else both halves' by the same rule.
    """
    if planner.at(**{vary.name: low}).name == planner.at(**{vary.name: high}).name:
        return [high]
    middle = vary.between(low, high)
    if middle is None:
        return [high]
    return [*_between(planner, vary, low, middle), *_between(planner, vary, middle, high)]


_NOT_CHANGED = ("schema", "pins", "training", "edited")  # of a job, by its fields
Change = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Case:
    """A change: the plan before it, the plan of the changed job (None: `why`), and the verdict on the old one there."""

    change: Change
    old: Plan
    new: Plan | None
    kept: Judgement | None
    why: str = ""

    @property
    def name(self) -> str:
        """Return the change as `name=value, name=value`."""
        return ", ".join(f"{name}={value}" for name, value in self.change.items())

    @property
    def gain(self) -> float | None:
        """Return the throughput of the new plan over the kept one's; None if either does not run or fit, or the kept
        one fits only with too high a risk.
        """
        return 1 + self.kept.slower if self.kept is not None and self.kept.safe else None


def through_changes(
    plan: Plan, changes: Sequence[Change], progress: Callable[[str, float], None] | None = None
) -> tuple[Case, ...]:
    """Return a case for each change of the plan's job. A search that fails gives a case without a plan. Raises
    InputError with all invalid changes.
    """
    problems, cases = Problems(), []
    jobs = [problems.collect(partial(changed, plan, change)) for change in changes]
    for change, (model, cluster, job) in zip(changes, map(problems.need, jobs), strict=True):
        try:
            new = best_plan(model, cluster, job, top=1, progress=progress)
            cases.append(Case(change, plan, new, judged(new, carried(plan.best, new))))
        except SymconfigError as error:
            cases.append(Case(change, plan, None, None, error.problems[0].what))
    return tuple(cases)


def changed(plan: Plan, change: Change) -> tuple[ModelDescriptor, ClusterDescriptor, Job]:
    """Return the model, cluster and job of a plan with changed fields of the job; a model that is not changed is the
    plan's without the adapter that its job added. Raises InputError with all problems: fields that are unknown or of
    _NOT_CHANGED, descriptors that do not load, an invalid job.
    """
    known = [name for name in Job.model_fields if name not in _NOT_CHANGED]
    problems = Problems(
        Problem("is no field of the job that can change", field=f"change.{name}", hint=nearest(name, known))
        for name in change
        if name not in known
    )
    model = problems.read(load_model, change.get("model")) or bare(plan.model, plan.job)
    cluster = problems.read(load_cluster, change.get("cluster")) or plan.cluster
    fields = revised(plan, {name: _read(value) for name, value in change.items() if name in known})
    job = problems.collect(lambda: validate(Document(fields, file=""), Job))
    return model, cluster, problems.need(job)


def _read(text: str) -> Any:
    """Return a text as an unquoted scalar of YAML; none, in any case, is None, too."""
    if text.lower() == "none":
        return None
    try:
        return plain(text)
    except ValueError:  # no number that a float holds
        return text


def parsed(words: Iterable[str]) -> tuple[Change, ...]:
    """Return the changes {name: value} of texts `name=value[,name=value…]`, stripped; a repeated name has its last
    value. Raises InputError with all malformed texts.
    """
    changes, problems = list[Change](), Problems()
    for word in words:
        parts = [part.partition("=") for part in word.split(",")]
        if any(not name.strip() or not sign or not value.strip() for name, sign, value in parts):
            need = "NAME=VALUE, or several with commas between"
            problems.add(Problem("is no change", field="--change", got=word, need=need))
            continue
        changes.append({name.strip(): value.strip() for name, _, value in parts})
    problems.check()
    return tuple(changes)
