"""The incumbents of the degree search: the best candidates of each family, the leanest one, and counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from symconfig.solve.choice import TIE, Family, complexity, family
from symconfig.solve.prospect import Prospect
from symconfig.solve.space import Refused

KEPT_WITHIN = 1.1  # times the best score: families up to here are kept in addition to those shown
NEARLY = 1.1  # times the budget: a candidate up to here may fit with other layers per stage
MOST_NEARLY = 8  # such candidates that are kept


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
        plain, mine = (
            complexity(prospect),
            self.families.setdefault((family(prospect), prospect.configuration.micro), {}),
        )
        if any(level <= plain and known.order <= prospect.order for level, known in mine.items()):
            return
        for level in [level for level, known in mine.items() if level >= plain and prospect.order <= known.order]:
            del mine[level]
        mine[plain] = prospect
        scores = sorted(_best(each).score for each in self.families.values())
        if len(self.families) > self.top and scores[-1] > TIE * scores[0]:
            del self.families[max(self.families, key=lambda name: _best(self.families[name]).order)]
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
        return sorted((prospect for each in self.families.values() for prospect in each.values()), key=_order)

    def add_nearly(self, prospect: Prospect) -> None:
        """Add a candidate that does not fit with its layers per stage; only the MOST_NEARLY best are kept."""
        self.nearly = sorted([*self.nearly, prospect], key=_order)[:MOST_NEARLY]


def _best(each: dict[int, Prospect]) -> Prospect:
    return min(each.values(), key=_order)


def _order(prospect: Prospect) -> tuple[object, ...]:
    return prospect.order
