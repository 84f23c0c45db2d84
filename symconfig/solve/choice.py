"""The choice: the fastest plan after a premium for choices that hardly any published layout has; within 2 % the one
with fewer options and axes, then the better score. `Incumbents` are the candidates that it is made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from symconfig.cost.table import Choice
from symconfig.frameworks.extras import on
from symconfig.plans.configuration import Precision
from symconfig.plans.pipeline_layout import is_uneven
from symconfig.solve.prospect import Prospect
from symconfig.solve.space import Refused
from symconfig.solve.usual import premium

TIE = 1.02  # times the best score: plans up to here count as equally fast
KEPT_WITHIN = 1.1  # times the best score: families up to here are kept in addition to those shown
NEARLY = 1.1  # times the budget: a candidate up to here may fit with other layers per stage
MOST_NEARLY = 8  # such candidates that are kept
_ORDER = attrgetter("order")


@dataclass(frozen=True, order=True, slots=True)
class Family:
    """The degrees by which plans count as different; micro-batch, vpp, layers per stage, recompute and offload do not.

    zero: 1 stands for stages 0 and 1, which differ only in the optimizer's memory.
    """

    tp: int
    cp: int
    pp: int
    ep: int
    etp: int
    zero: int
    precision: Precision


def family(prospect: Prospect) -> Family:
    """Return the family of a candidate; ZeRO stages 0 and 1 are one, and all stages if there is one replica."""
    p = prospect.configuration
    zero = max(p.zero_stage, 1) if p.dp * p.cp > 1 else 1
    return Family(p.tp, p.cp, p.pp, p.ep, p.etp, zero, prospect.request.precision)


def ranked(candidates: Iterable[Prospect], top: int) -> list[Prospect]:
    """Return up to `top` candidates, one of each family: repeatedly the `first` of the families not taken yet."""
    left, result = list(candidates), list[Prospect]()
    while left and len(result) < top:
        result.append(first(left))
        left = [each for each in left if family(each) != family(result[-1])]
    return result


def first(candidates: Sequence[Prospect]) -> Prospect:
    """Return the least complex of the candidates within TIE of the best score, ties by `order`.

    Raises ValueError if there are none.
    """
    limit = TIE * min(each.score for each in candidates)
    return min(
        (each for each in candidates if each.score <= limit),
        key=lambda each: (complexity(each), each.order),
    )


def scored(prospect: Prospect, step_s: float, device_bytes: float) -> Prospect:
    """Return a copy of the candidate with the given step in seconds and bytes in use on the device, and its score.

    The score is the step times the premium for its unusual choices.
    """
    score = step_s * float(premium(len(unusual(prospect))))
    return replace(prospect, step_s=step_s, device_bytes=device_bytes, score=score)


def unusual(prospect: Prospect) -> tuple[str, ...]:
    """Return the names of a candidate's choices that are rare in published layouts; empty without data on them."""
    c, usual = prospect.configuration, prospect.request.usual
    rare = {} if usual is None else usual.rare_choices(c, prospect.request.configuration, c.recompute)
    return tuple(name for name, is_rare in rare.items() if is_rare)


def complexity(prospect: Prospect) -> int:
    """Return the number of a candidate's deviations from a plain layout: fewer is simpler.

    One each for tp, pp, vpp, cp, ep and etp above 1, an option on, recompute (twice if of the first layers only),
    offload of activations, optimizer states and weights, a layout string, and uneven chunks (first or last stage set,
    or such a layout).
    """
    p, split = prospect.configuration, prospect.split
    ends = split.first_layers is not None or split.last_layers is not None
    return (
        sum(size > 1 for size in (p.tp, p.pp, p.vpp, p.cp, p.ep, p.etp))
        + len(on(prospect.request.configuration))
        + recomputed_and_offloaded(prospect.choice, some_layers=bool(prospect.block_layers))
        + bool(prospect.offload.optimizer)
        + bool(prospect.offload.weights)
        + (split.layout is not None)
        + (ends or (split.layout is not None and is_uneven(split.chunks)))
    )


def recomputed_and_offloaded(choice: Choice, *, some_layers: bool = False) -> int:
    """Return 0 to 3: one each for recompute, for recompute of some layers only, and for activation offload."""
    return bool(choice.modules or some_layers) + some_layers + bool(choice.offload)


@dataclass(slots=True)
class Incumbents:
    """The state of a search: its best candidates and counts.

    top: number of families to keep; shown: number of families kept however slow they are, others only if near the best.
    families: for each family and micro-batch the best candidate by complexity. nearly: candidates that do not fit but
    may with other layers per stage, the best first. leanest: the one of least memory, while none fits. exhaustive: do
    not prune by bounds. any_will_do: stop at the first plan that fits.
    """

    top: int
    shown: int
    exhaustive: bool = False
    any_will_do: bool = False
    families: dict[tuple[Family, int], dict[int, Prospect]] = field(default_factory=dict)
    nearly: list[Prospect] = field(default_factory=list)
    leanest: Prospect | None = None
    candidates: int = 0
    feasible: int = 0
    simulated: int = 0
    refused: Refused = field(default_factory=Refused)
    worst_s: float = float("inf")  # score that a candidate must beat to be shown

    @property
    def cutoff_s(self) -> float:
        """Return the lower bound above which a branch is pruned; infinite for an exhaustive search."""
        return float("inf") if self.exhaustive else self.worst_s

    def add(self, prospect: Prospect) -> None:
        """Add a candidate unless one of its family and micro-batch is at least as simple and as good; update `worst_s`.

        Those of the same family and micro-batch that it dominates are removed; then, with more than `top` families, the
        worst if it is beyond TIE times the best score. worst_s: the last family's score once there are `top`; with
        `shown` families at most the larger of the score of number `shown` and KEPT_WITHIN times the best; at least TIE
        times the best.
        """
        plain, name = complexity(prospect), (family(prospect), prospect.configuration.micro)
        mine = self.families.setdefault(name, {})
        if any(level <= plain and known.order <= prospect.order for level, known in mine.items()):
            return
        for level in [level for level, known in mine.items() if level >= plain and prospect.order <= known.order]:
            del mine[level]
        mine[plain] = prospect
        best = {name: min(each.values(), key=_ORDER) for name, each in self.families.items()}
        scores = sorted(one.score for one in best.values())
        if len(best) > self.top and scores[-1] > TIE * scores[0]:
            del self.families[max(best, key=lambda name: best[name].order)]
            scores.pop()
        # Set what a candidate must beat: the last of the families, or where enough of them are near the best, all that
        # is not near.
        last = scores[-1] if len(scores) >= self.top else float("inf")
        if len(scores) >= self.shown:
            last = min(last, max(scores[self.shown - 1], KEPT_WITHIN * scores[0]))
        self.worst_s = max(last, TIE * scores[0])  # all that may be taken for the best

    @property
    def best(self) -> list[Prospect]:
        """Return all incumbents, the best score first."""
        return sorted((prospect for each in self.families.values() for prospect in each.values()), key=_ORDER)

    def add_nearly(self, prospect: Prospect) -> None:
        """Add a candidate that does not fit with its layers per stage; only the MOST_NEARLY best are kept."""
        self.nearly = sorted([*self.nearly, prospect], key=_ORDER)[:MOST_NEARLY]
