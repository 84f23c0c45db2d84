"""Where a plan stops being the best: planned at several values, and again between two that differ, to the border."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from symconfig.errors import InfeasibleError, InputError
from symconfig.plans.plan import Candidate, Plan
from symconfig.runs.best import best_plan
from symconfig.runs.whatif.vary import RATES, Vary

SAMPLES = 7  # values that are planned before borders are looked for
NOTHING = "no plan fits"


@dataclass(frozen=True, slots=True)
class Answer:
    """The best plan at some values. name: how it splits the work, by which two plans are the same. step_s: of a whole
    step, where it has several phases."""

    name: str
    step_s: float | None
    weighed: int


@dataclass(frozen=True, slots=True)
class Span:
    """Values from low to high at all of which, as far as was planned, one plan is the best; with its step at both."""

    low: float
    high: float
    answer: Answer
    high_s: float | None


@dataclass(frozen=True, slots=True)
class Line:
    """One name varied and all else as it is: the spans, in order."""

    vary: Vary
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A plan's ranges. now: the plan itself; plans: searches that were run; weighed: candidates in all of them."""

    now: Answer
    lines: tuple[Line, ...]
    plans: int
    weighed: int


def named(candidate: Candidate) -> str:
    """Return how a candidate splits the work and what it recomputes: plans of one name are the same plan."""
    p, o = candidate.parallel, candidate.options
    degrees = [f"{name} {value}" for name in ("tp", "pp", "vpp", "cp", "ep", "etp") if (value := getattr(p, name)) > 1]
    recompute = o.recompute.granularity
    layers = f" {o.recompute.num_layers}" if o.recompute.num_layers else ""
    away = [word for word, is_on in (("optimizer in host memory", o.optimizer_offload),) if is_on]
    return ", ".join(
        [
            *degrees,
            f"dp {p.dp}",
            f"micro {candidate.batch.micro}",
            f"zero {o.zero_stage}",
            f"recompute {recompute}{layers}",
            *away,
        ]
    )


@dataclass(frozen=True, slots=True)
class Border:
    """A border where the best plan changes: below and above it, each plan's options that the other has not so.

    A side at which no plan fits is empty, and then the other has all of its options.
    """

    last: float
    first: float
    below: tuple[str, ...]
    above: tuple[str, ...]


def borders(line: Line) -> tuple[Border, ...]:
    """Return a line's borders, rising."""
    return tuple(
        Border(before.high, after.low, *_apart(before.answer, after.answer)) for before, after in pairwise(line.spans)
    )


def _apart(before: Answer, after: Answer) -> tuple[tuple[str, ...], tuple[str, ...]]:
    one, other = (_options(each) if each.step_s is not None else {} for each in (before, after))
    if not one or not other:
        return tuple(map(" ".join, one.items())), tuple(map(" ".join, other.items()))
    names = [name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name)]
    first, second = (tuple(f"{name} {each.get(name) or _unsaid(name)}" for name in names) for each in (one, other))
    return first, second


def _options(answer: Answer) -> dict[str, str]:
    """Return the options that an answer's name tells, each with its value."""
    return {name: value for name, _, value in (part.partition(" ") for part in answer.name.split(", "))}


def _unsaid(name: str) -> str:
    """Return the value of an option that `named` leaves out."""
    return "in GPU memory" if name == "optimizer" else "1"


@dataclass(slots=True)
class _Planner:
    """Plans at other values, each once."""

    plan: Plan
    progress: Callable[[int], None]
    known: dict[tuple[tuple[str, float], ...], Answer] = field(default_factory=dict)

    def at(self, values: Mapping[str, float]) -> Answer:
        key = tuple(sorted(values.items()))
        if key not in self.known:
            self.known[key] = self._solved(values)
            self.progress(len(self.known))
        return self.known[key]

    def _solved(self, values: Mapping[str, float]) -> Answer:
        cluster, job = self.plan.cluster, self.plan.job
        for name, value in values.items():
            if name in RATES:
                cluster = RATES[name](cluster, value)
            else:
                job = job.model_copy(update={name: round(value)})
        try:
            plan = best_plan(self.plan.model, cluster, job, top=1)
        except (InfeasibleError, InputError):
            return Answer(NOTHING, None, 0)
        step_s = plan.steps[0].step_s if plan.steps else plan.best.predicted.step_s
        return Answer(named(plan.best), step_s, plan.search.candidates)


def whatif(plan: Plan, varies: tuple[Vary, ...], progress: Callable[[int], None]) -> WhatIf:
    """Return the ranges of each name.

    Between two values with different best plans the planner is asked again half way, until the border is known to the
    next whole step, or a factor to 1e-3. A plan that is best only between two planned values is missed.
    """
    planner = _Planner(plan, progress)
    now = planner.at({})
    lines = tuple(Line(vary, tuple(_spans(planner, vary))) for vary in varies)
    return WhatIf(now, lines, len(planner.known), sum(each.weighed for each in planner.known.values()))


def _spans(planner: _Planner, vary: Vary) -> list[Span]:
    values = vary.samples(SAMPLES)
    points = [values[0]]
    for value in values[1:]:
        points += _between(planner, vary, points[-1], value)
    spans: list[Span] = []
    for value in points:
        answer = planner.at({vary.name: value})
        if spans and spans[-1].answer.name == answer.name:
            spans[-1] = Span(spans[-1].low, value, spans[-1].answer, answer.step_s)
        else:
            spans.append(Span(value, value, answer, answer.step_s))
    return spans


def _between(planner: _Planner, vary: Vary, low: float, high: float) -> list[float]:
    """Return the values after `low` up to `high`, as close to every border between them as it is asked for."""
    if planner.at({vary.name: low}).name == planner.at({vary.name: high}).name:
        return [high]
    middle = vary.between(low, high)
    if middle is None:
        return [high]
    return [*_between(planner, vary, low, middle), *_between(planner, vary, middle, high)]
