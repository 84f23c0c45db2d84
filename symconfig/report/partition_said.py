"""Everything that is said of a partition, and how its names are written."""

from __future__ import annotations

import re
from dataclasses import dataclass

from symconfig.cost.partition.costs import Objective
from symconfig.graph import dims as d
from symconfig.solve.partition.account import Compared, Spent
from symconfig.solve.partition.collectives import Moved
from symconfig.solve.partition.project import Projection
from symconfig.solve.partition.reasons import Reason
from symconfig.solve.partition.run import Partition

LETTERS = {
    d.BATCH: "B", d.SEQUENCE: "S", d.KEYS: "T", d.HIDDEN: "D", d.VOCAB: "V", d.HEADS: "A", d.KV_HEADS: "KV",
    d.HEAD_DIM: "C", d.FFN: "F", d.EXPERTS: "E", d.EXPERT_FFN: "G", d.SLOTS: "U", d.RANK: "R",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Said:
    """Everything that is said of a partition. subject, job: of the headline. projected: cost and bytes of the nearest
    degrees on this graph. pins: of the planner, where the partition is such degrees of a model's. explained: name of an
    operator that is shown in full. planned: what came of planning it, or why not."""

    subject: str
    job: str
    found: Partition
    reasons: tuple[Reason, ...]
    moved: tuple[Moved, ...]
    spent: Spent
    projection: Projection
    projected: tuple[float, float]
    pins: dict[str, str]
    compared: tuple[Compared, ...] = ()
    explained: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def timed(self) -> bool:
        return self.found.ask.objective is Objective.TIME

    def amount(self, cost: float) -> str:
        """A cost in milliseconds, or relative."""
        return f"{1e3 * cost:,.3f}" if self.timed else f"{cost:,.4g}"

    @property
    def unit(self) -> str:
        return "ms" if self.timed else "cost"


def general(name: str) -> str:
    """`layers.*.up_proj` of `layers.3.up_proj`."""
    return re.sub(r"(?<![^._])\d+(?![^._])", "*", name)


def letter(dim: str) -> str:
    return LETTERS.get(dim, dim)


def short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
