"""Families: the ways to split a model that a person would call another layout."""

from __future__ import annotations

from dataclasses import dataclass

from symconfig.plans.choices import Precision
from symconfig.solve.prospect import Prospect


@dataclass(frozen=True, order=True, slots=True)
class Family:
    """One way to split a model; micro-batch, chunks, stages, recompute and offload are inside.

    zero: 1 stands for stages 0 and 1, which differ in what optimizers hold only.
    """

    tp: int
    cp: int
    pp: int
    ep: int
    etp: int
    zero: int
    precision: Precision


def family(prospect: Prospect) -> Family:
    """Return the family of a candidate."""
    p = prospect.degrees
    return Family(p.tp, p.cp, p.pp, p.ep, p.etp, max(prospect.zero, 1), prospect.request.precision)
