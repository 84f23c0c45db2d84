"""Every point that a search weighed, with the best that it can do, and what removed each of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.lattice import Array
from symconfig.plans.columns import Columns, Values
from symconfig.plans.unknown import Unknown

WHOLE = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "micro", "zero")  # columns of whole numbers
WORDS = ("precision", "cp_comm", "recompute", "options")  # columns of words
REFUSED_BY = ("tp", "cp", "ep", "etp", "pp")  # columns of what was refused; pp 0: at any pipeline degree


@dataclass(frozen=True, slots=True)
class Rows:
    """Weighed points, [n] each, the fastest first and those that do not fit behind, the leanest first.

    whole: by the names WHOLE; words: by the names WORDS, as places in `spelled`. step_s: by the formula for the
    schedule, which is not simulated. device_bytes: of the fullest GPU, while routers are untrained
    where the search counts that. fits: both are of the fastest policy that does;
    where none does, of the leanest, or the least that any policy can need, with infinite seconds.
    """

    whole: NDArray[np.int64]
    words: NDArray[np.int64]
    spelled: tuple[tuple[str, ...], ...]
    step_s: Array
    device_bytes: Array
    fits: NDArray[np.bool_]

    @property
    def size(self) -> int:
        return int(self.step_s.size)

    def first(self, count: int) -> Rows:
        """Return the first rows."""
        return Rows(
            self.whole[:count],
            self.words[:count],
            self.spelled,
            self.step_s[:count],
            self.device_bytes[:count],
            self.fits[:count],
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """A constraint, and the degrees that it refused, [n, 5] by the names REFUSED_BY."""

    name: str
    rule: str
    degrees: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Part:
    whole: NDArray[np.int64]
    words: NDArray[np.int64]
    step_s: Array
    device_bytes: Array
    fits: NDArray[np.bool_]


@dataclass(slots=True)
class Tally:
    """A record of what is weighed in a lattice."""

    budget_bytes: float = 0.0  # of a device, that a candidate may use
    parts: list[_Part] = field(default_factory=list)
    spelled: tuple[dict[str, int], ...] = field(default_factory=lambda: tuple({} for _ in WORDS))
    refused: dict[str, tuple[str, list[NDArray[np.int64]]]] = field(default_factory=dict)

    def add(
        self,
        points: Columns,
        vpp: Values,
        zero: int,
        words: Sequence[Sequence[str]],
        cost: tuple[Array, Array],
        fits: NDArray[np.bool_],
    ) -> None:
        """Add points of one batch. words: of WORDS, each [n]; cost: seconds of a step and bytes of a device, [n]."""
        size = points.size
        given = {"vpp": vpp, "zero": zero}
        columns = [given.get(name, getattr(points, name)) for name in WHOLE]
        whole = np.stack([np.broadcast_to(np.asarray(column, dtype=np.int64), size) for column in columns], axis=1)
        places = [
            [known.setdefault(word, len(known)) for word in each]
            for known, each in zip(self.spelled, words, strict=True)
        ]
        self.parts.append(_Part(whole, np.array(places, dtype=np.int64).T, *cost, fits))

    def refuse(self, name: str, rule: str, points: Columns) -> None:
        """Add points that a constraint refused."""
        columns = [getattr(points, name) for name in REFUSED_BY]
        known = [0 if isinstance(column, Unknown) else column for column in columns]
        each = np.stack([np.broadcast_to(np.asarray(column, dtype=np.int64), points.size) for column in known], axis=1)
        self.refused.setdefault(name, (rule, []))[1].append(np.unique(each, axis=0))

    def rows(self) -> Rows:
        """Return one row for all points with the same degrees, microbatch and ZeRO stage: the best of them."""
        if not self.parts:
            empty = np.zeros(0)
            none = np.zeros((0, len(WHOLE)), np.int64)
            return Rows(none, none[:, : len(WORDS)], ((),) * len(WORDS), empty, empty, empty.astype(bool))
        whole, words, step, held, fits = (
            np.concatenate([getattr(part, name) for part in self.parts])
            for name in ("whole", "words", "step_s", "device_bytes", "fits")
        )
        order = np.lexsort((*whole.T[::-1], held, np.where(fits, step, 0.0), ~fits))
        _, first = np.unique(whole[order], axis=0, return_index=True)
        kept = order[np.sort(first)]
        spelled = tuple(tuple(known) for known in self.spelled)
        return Rows(whole[kept], words[kept], spelled, step[kept], held[kept], fits[kept])

    def refusals(self) -> tuple[Refusal, ...]:
        """Return what each constraint refused, those first that refused the most."""
        refusals = [
            Refusal(name, rule, np.unique(np.concatenate(each), axis=0)) for name, (rule, each) in self.refused.items()
        ]
        return tuple(sorted(refusals, key=lambda one: (-len(one.degrees), one.name)))
