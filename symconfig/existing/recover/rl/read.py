"""How a step's samples are read before an update learns from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Micro-batches of a step's samples that are read and not learnt from. room: tokens of one, on all ranks of context
    parallelism. passes: of them on each replica. fill: the share of their room that has tokens."""

    room: int
    passes: int
    fill: float
