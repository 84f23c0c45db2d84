"""Choices of an old plan as pins of a new one, and plans near the old one: as fast as the best within a little, whose
checkpoint is loaded with less ado.

Three groups of choices decide what a checkpoint holds and where: which rank has which part of which weight, how the
optimizer's state is sharded, and its precision. Each group that the new plan chose otherwise is kept by itself and with
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.frameworks.extras import in_effect
from symconfig.plans.configuration import EXTRAS, Configuration, Extra
from symconfig.plans.plan import Candidate, Plan
from symconfig.runs.checkpoint import Loadable, Verdict
from symconfig.solve.extras import values_of

# What decides which rank holds which part of which weight: where these stay, every rank reads what it wrote.
LAYOUT = ("tp", "pp", "vpp", "ep", "etp")
WORTH = 0.01  # a step that is this much longer is worth a checkpoint that is loaded with less ado
FREE = 0.001  # and this much longer is nothing
GROUPS = (LAYOUT, ("zero",), ("precision",))


def _degree(name: str, candidate: Candidate) -> str:
    return str(getattr(candidate.configuration, name))


def _extra(extra: Extra, candidate: Candidate) -> str | None:
    """Return the pin's value of a framework option; None if no pin of this backend can express it."""
    value = getattr(in_effect(candidate.configuration), extra.name)
    if value != extra.usual and candidate.target.backend not in extra.of:
        return None
    return next(word for word, meant in values_of(extra, candidate.configuration.world_size).items() if meant == value)


_VALUES: Mapping[str, Callable[[Candidate], str | None]] = {
    **{name: partial(_degree, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")},
    "mbs": lambda candidate: str(candidate.configuration.micro),
    "zero": lambda candidate: str(candidate.configuration.zero_stage),
    "sp": lambda candidate: _switch(candidate.configuration.sequence_parallel),
    "recompute": lambda candidate: _recompute(candidate.configuration),
    "precision": lambda candidate: candidate.configuration.precision,
    "optimizer_offload": lambda candidate: f"{candidate.configuration.optimizer_offload:g}",
    "activation_offload": lambda candidate: _switch(candidate.configuration.activation_offload),
    "cp_comm": lambda candidate: candidate.configuration.cp_comm if candidate.configuration.cp > 1 else None,
    "layout": lambda candidate: candidate.configuration.pipeline_layout,
    **{extra.pin: partial(_extra, extra) for extra in EXTRAS},
}


def _switch(on: bool) -> str:
    return "1" if on else "0"


def _recompute(c: Configuration) -> str | None:
    """Return the recompute as a pin, its kind or `selective:modules`; None for the method "block", whose layers no pin
    gives.
    """
    if c.recompute_method == "block":
        return None
    return f"{c.recompute}:{','.join(c.recompute_modules)}" if c.recompute == "selective" else c.recompute


def pins(candidate: Candidate, kept: Sequence[str]) -> dict[str, str]:
    """Return {name: value} of a candidate's choices `kept` as pins. Raises InputError with all names whose value no pin
    can express; None as a value counts as such.
    """
    values = {name: _VALUES[name](candidate) for name in kept}
    wrong = [name for name, value in values.items() if value is None]
    if wrong:
        raise InputError(
            [Problem("cannot be kept: no pin expresses the old plan's value", field="pins", got=name) for name in wrong]
        )
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class NearPlan:
    """A plan that keeps some choices of the old one. pins: these choices. slower: its step over the new plan's, less
    1. verdict: on loading the old plan's checkpoint.
    """

    pins: dict[str, str]
    plan: Plan
    slower: float
    verdict: Verdict

    @property
    def free(self) -> bool:
        """Return whether the step is at most FREE (0.1 %) slower."""
        return self.slower <= FREE


def nearest(
    old: Plan, new: Plan, loads: Loadable, solved: Callable[[Mapping[str, str]], Plan],
    loadable: Callable[[Plan], Loadable],
) -> NearPlan | None:  # fmt: skip
    """Return the plan, at most WORTH (1 %) slower, that keeps some old choices and loads the old checkpoint with the
    best verdict.

    None if none has a better verdict than `new`, for another model or framework, or if the checkpoint loads as it is.
    Ties go to the faster, then to fewer pins; kept choices without a plan are skipped. loads: verdict for `new`;
    loadable: returns it for any plan. solved: searches with further pins.
    """
    if loads.verdict is Verdict.AS_IS or old.model != new.model or old.best.target.backend != new.best.target.backend:
        return None
    plans = []
    for pins in pins_kept(old.best, new):
        try:
            plan = solved(pins)
        except (InputError, InfeasibleError):
            continue
        slower = plan.best.predicted.step_s / new.best.predicted.step_s - 1
        verdict = loadable(plan).verdict
        if slower <= WORTH and verdict.rank < loads.verdict.rank:
            plans.append(NearPlan(pins, plan, slower, verdict))
    return min(plans, key=lambda one: (one.verdict.rank, max(0.0, one.slower), len(one.pins)), default=None)


def pins_kept(old: Candidate, new: Plan) -> Iterator[dict[str, str]]:
    """Yield the old values of each combination of the differing groups, smaller ones first. Choices that the new job
    pins are left out, and degrees that are 1 in both. Raises InputError if no pin expresses a value.
    """
    groups = []
    for group in GROUPS:
        names = [name for name in group if name not in new.job.pins]
        before, after = pins(old, names), pins(new.best, names)
        kept = {name: value for name, value in before.items() if (value, after[name]) != ("1", "1")}
        if before != after:
            groups.append(kept)
    for size in range(1, len(groups) + 1):
        for some in combinations(groups, size):
            yield {name: value for pins in some for name, value in pins.items()}
