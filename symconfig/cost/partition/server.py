"""Data parallel with a parameter server in place of all-reduces: what its links carry.

Every turn's gradients are summed by each worker itself; once a step each sends them to the server and fetches the new
weights from it (Li et al., Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014). Nothing is added
up on the way, so the server's links carry the gradients of every worker. Servers are ranks: what they hold themselves
does not travel. Sending and fetching follow each other, since weights depend on all gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """An axis seen from the server. ranks: along it; bytes/s of one GPU's link, one direction; seconds of a message."""

    ranks: int
    bandwidth_bytes_per_s: float
    latency_s: float


def passed_bytes(ranks: int, within: int, amount_bytes: float, servers: int = 1) -> float:
    """Return what passes a server's link along one axis when every worker sends so much, or fetches it.

    within: workers behind each of the axis' ranks, along the axes inside of it. servers: the parameters are spread over
    so many evenly; as many as there are workers move as much as a ring all-reduce.
    """
    return (ranks - 1) * within * amount_bytes / servers


def passed_s(axes: Sequence[Reach], amount_bytes: float, servers: int = 1) -> float:
    """Return the seconds in which all workers have sent, or fetched. axes: those along which ranks have data of their
    own, innermost first.

    Workers wait for each other on the server's link, and for the links of its levels, which a message passes one after
    the other.
    """
    seconds, within = 0.0, 1
    for axis in axes:
        moved = passed_bytes(axis.ranks, within, amount_bytes, servers)
        seconds += moved / axis.bandwidth_bytes_per_s + (axis.latency_s if axis.ranks > 1 else 0.0)
        within *= axis.ranks
    return seconds
