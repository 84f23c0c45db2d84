"""What the search has found so far: the best candidates, the leanest one, and how much was weighed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from symconfig.solve.found import Found
from symconfig.solve.gamma import Gammas
from symconfig.solve.space import Refused

if TYPE_CHECKING:
    from symconfig.solve.pieces import Piece


@dataclass(slots=True)
class Weighed:
    """What the search knows so far.

    exhaustive: weigh also what a lower bound already rules out. any_will_do: stop at the first plan that fits.
    """

    top: int
    exhaustive: bool = False
    any_will_do: bool = False
    best: dict[tuple[object, ...], Found] = field(default_factory=dict)
    leanest: Found | None = None
    candidates: int = 0
    feasible: int = 0
    refused: Refused = field(default_factory=Refused)
    gammas: Gammas | None = None  # for the objective symtensor
    pieces: list[Piece] = field(default_factory=list)  # all of the lattice that the target can run
    worst_s: float = float("inf")  # step time that a candidate must beat to be shown
    best_s: float = float("inf")  # step time that a candidate must beat to be the answer
    below_s: float = float("inf")  # nothing slower counts

    def __post_init__(self) -> None:
        self.worst_s = self.best_s = self.below_s

    def add(self, found: Found) -> None:
        """Keep the best candidate of each choice of degrees, and of those the best few."""
        key = (found.degrees, found.micro, found.request.precision)
        known = self.best.get(key)
        if known is None or found.order < known.order:
            self.best[key] = found
        if len(self.best) > self.top:
            del self.best[max(self.best, key=lambda name: self.best[name].order)]
        scores = [found.score for found in self.best.values()]
        self.worst_s = min(max(scores) if len(scores) >= self.top else float("inf"), self.below_s)
        self.best_s = min(*scores, self.below_s)

    def forget(self) -> list[Found]:
        """The best so far, which are to be found again."""
        ranked = self.ranked()
        self.best.clear()
        self.worst_s = self.best_s = self.below_s
        return ranked

    def lean(self, found: Found) -> None:
        if self.leanest is None or found.device_bytes < self.leanest.device_bytes:
            self.leanest = found

    def ranked(self) -> list[Found]:
        """The best `top` with different degrees, by the objective."""
        if self.gammas is not None and (chosen := self.gammas.chosen()) is not None:
            return chosen[1]
        return sorted(self.best.values(), key=lambda found: found.order)
