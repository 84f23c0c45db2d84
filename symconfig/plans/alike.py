"""Stages of a pipeline that are alike, in words: `2 to 15`, each `4 x (1 dense)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from symconfig.plans.plan import Stage

_ENDS = ("embedding", "head")  # there is one of each
_MOST_RUNS = 4  # of equal layers, that a chunk is written with


@dataclass(frozen=True, slots=True)
class Alike:
    """Stages one after the other with the same layers and the same recompute, and the least and the most bytes that
    one of them holds."""

    first: int
    last: int
    holds: str
    recompute: str
    least_bytes: float
    most_bytes: float

    @property
    def name(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"


def stages_alike(stages: Sequence[Stage]) -> list[Alike]:
    """Return runs of consecutive stages with equal layers and recompute, with the least and most peak bytes of each."""
    groups = []
    for (holds, recompute), same in groupby(enumerate(stages), lambda each: (held(each[1]), each[1].recompute)):
        numbers, mine = zip(*same, strict=True)
        peaks = [stage.peak_bytes for stage in mine]
        groups.append(Alike(numbers[0], numbers[-1], holds, recompute, min(peaks), max(peaks)))
    return groups


def held(stage: Stage) -> str:
    """Return a stage's layers in words, equal chunks joined: `embedding + 4 dense | 7 x (4 dense)`."""
    runs = [(layers(chunk), len(list(same))) for chunk, same in groupby(stage.chunks)]
    return " | ".join(text if times == 1 else f"{times} x ({text})" for text, times in runs)


def layers(chunk: Sequence[str]) -> str:
    """Return a chunk's layers in words and in order: `embedding + 20 dense`, or `no layers` if it is empty.

    Kinds that alternate are a repeated period: `4 x (1 moe + 1 dense)`. Embedding and head are taken off the ends.
    """
    first = [kind for kind in chunk[:1] if kind in _ENDS]
    last = [kind for kind in chunk[len(first) :][-1:] if kind in _ENDS]
    between = _runs(chunk[len(first) : len(chunk) - len(last)])
    return " + ".join([*first, *between, *last]) or "no layers"


def _runs(kinds: Sequence[str]) -> list[str]:
    """Return runs of equal kinds in words, such as `4 dense`; more than _MOST_RUNS as the shortest period and its rest.

    Without a period that comes twice, a single text with the total of each kind, `in turns`.
    """
    runs = [f"{len(list(same))} {kind}" for kind, same in groupby(kinds)]
    if len(runs) <= _MOST_RUNS:
        return runs
    for period in range(2, len(kinds) // 2 + 1):
        if all(kind == kinds[index % period] for index, kind in enumerate(kinds)):
            times, rest = divmod(len(kinds), period)
            return [f"{times} x ({' + '.join(_runs(kinds[:period]))})", *_runs(kinds[:rest])]
    return [", ".join(f"{times} {kind}" for kind, times in Counter(kinds).items()) + " in turns"]
