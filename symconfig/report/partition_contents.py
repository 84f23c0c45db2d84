"""Everything that is said of a partition, and how its names are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from string import ascii_lowercase

from symconfig.cost.partition.costs import Objective
from symconfig.graph import dims as d
from symconfig.graph.program.net import Net
from symconfig.solve.partition.account import Spent
from symconfig.solve.partition.baselines import Priced
from symconfig.solve.partition.collectives import Moved
from symconfig.solve.partition.reasons import Reason
from symconfig.solve.partition.run import Partition

_LONG = 12  # letters of a dim that are too many for a table
LETTERS = {
    d.BATCH: "B", d.SEQUENCE: "S", d.KEYS: "T", d.HIDDEN: "D", d.VOCAB: "V", d.HEADS: "A", d.KV_HEADS: "KV",
    d.HEAD_DIM: "C", d.FFN: "F", d.EXPERTS: "E", d.EXPERT_FFN: "G", d.SLOTS: "U", d.EVERY: "U", d.RANK: "R",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a partition's report. subject, job: lines of the headline. explained: indices of operators
    shown in detail. names: letters of dims.
    """

    subject: str
    job: str
    partition: Partition
    reasons: tuple[Reason, ...]
    moved: tuple[Moved, ...]
    spent: Spent
    compared: tuple[Priced, ...] = ()
    explained: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # of dims, as they are written

    @property
    def timed(self) -> bool:
        return self.partition.ask.objective is Objective.TIME

    def amount(self, cost: float) -> str:
        """Return a cost as text, in milliseconds or relative."""
        return f"{1e3 * cost:,.3f}" if self.timed else f"{cost:,.4g}"

    def signed(self, cost: float) -> str:
        """Return a difference of costs as text, with its sign."""
        return ("+" if cost >= 0 else "") + self.amount(cost)

    def named(self, dim: str) -> str:
        return self.names.get(dim, dim)

    @property
    def unit(self) -> str:
        return "ms" if self.timed else "cost"


def names_of(net: Net) -> dict[str, str]:
    """Return {dim: letter} of the dims that a network's tensors have, in the program's order."""
    dims = {dim for node in net.nodes for port in node.ports for dim in port.tensor.dims}
    return names(tuple(dim for dim in net.program.sizes if dim in dims))


def names(dims: Iterable[str]) -> dict[str, str]:
    """Return {dim: letter}: fixed letters for models' dims, unused ones for other dims longer than _LONG; short ones
    have none.
    """
    result = {dim: LETTERS[dim] for dim in dims if dim in LETTERS}
    taken = {*result.values(), *dims}
    free = (a + b for a in ("", *ascii_lowercase) for b in ascii_lowercase)
    for dim in dims:
        if dim not in result and len(dim) > _LONG:
            result[dim] = next(sign for sign in free if sign not in taken)
    return result
