"""Seconds of kernels and of messages on the given cluster, from first principles."""

from __future__ import annotations

from math import ceil, floor, log2

from tests.oracle.given import (
    ACTIVATION,
    ATTENTION_BACKWARD,
    ATTENTION_SHARE,
    CONTENTION,
    HALF_K,
    HBM,
    LAUNCH,
    LEVELS,
    PEAK,
    PRODUCT_SHARE,
    UNITS,
)

# Rows and columns of a kernel's output tile; its rate over the best tile's; share of its prologue and epilogue that
# no other tile on the same unit hides.
TILES = (
    (256, 128, 1.0, 1.0),
    (128, 256, 1.0, 1.0),
    (128, 128, 0.93, 0.5),
    (64, 256, 0.87, 0.5),
    (128, 64, 0.75, 0.25),
    (64, 64, 0.6, 0.125),
)
TILE_KEYS = 384  # that flash attention works on beyond those that a query attends to: tiles of 256 queries, 128 keys
TINY = 1e-9


def product(batch: float, m: float, n: float, k: float) -> float:
    """A batch of m x k by k x n in bf16: the roofline, with the tiles that fill whole waves of compute units."""
    best = 0.0
    for rows, columns, rate, shows in TILES:
        tiles = batch * ceil(m / rows) * ceil(n / columns)
        parts = max(1, min(floor(UNITS / tiles + TINY), floor(k / 1024)))
        waves = ceil(tiles * parts / UNITS - TINY)
        useful = batch * m * n * parts / (waves * UNITS * rows * columns)
        best = max(best, rate * useful * k / (k + shows * HALF_K))
    compute = 2 * batch * m * n * k / (PEAK * PRODUCT_SHARE * best)
    traffic = ACTIVATION * batch * (m * k + k * n + m * n) / HBM
    return max(compute, traffic) + LAUNCH


def attention(queries: float, keys: float, channels: int, steps: int, backward: bool) -> float:
    """Flash attention: two products of 2 FLOP forward, five backward (Dao 2022). steps: of a ring of keys."""
    rate = PEAK * ATTENTION_SHARE * (ATTENTION_BACKWARD if backward else 1.0)
    flops = (5 if backward else 2) * 2 * queries * (keys + TILE_KEYS) * channels
    return flops / rate + LAUNCH * steps


def memory_bound(moved: float) -> float:
    return moved / HBM + LAUNCH


def _members(ranks: float, stride: float) -> list[float]:
    """How many of a group are in one domain of each level, neighbours being `stride` ranks apart."""
    return [min(ranks, max(1.0, level.size // stride)) for level in LEVELS]


def ring(amount: float, ranks: float, stride: float, passes: int = 1) -> float:
    """All-gather or reduce-scatter of a buffer of `amount` bytes, or (2 passes) all-reduce.

    Every rank sends (ranks - 1) / ranks of it in a pass; the slowest level binds, across which all links of a domain
    work at once. An all-reduce may take a tree over the nodes instead of a ring's steps.
    """
    if ranks <= 1:
        return 0.0
    inside, slowest, steps, depth = 1.0, 0.0, 0.0, 0.0
    for index, (level, member) in enumerate(zip(LEVELS, _members(ranks, stride), strict=True)):
        if member > inside:
            slowest = max(slowest, amount / (level.rate * inside))
        steps += level.latency * (ranks / inside - ranks / member)
        depth += level.latency * (log2(member / inside) if index else member - 1)
        inside = member
    latency = min(steps, depth) if passes == 2 else steps
    moved = (ranks - 1) / ranks * slowest
    return passes * (moved + latency)


def all_to_all(amount: float, ranks: float, stride: float) -> float:
    """Each rank keeps 1 / ranks of its bytes and sends as much to every other one; levels work at the same time."""
    if ranks <= 1:
        return 0.0
    inside, slowest, latency = 1.0, 0.0, 0.0
    for level, member in zip(LEVELS, _members(ranks, stride), strict=True):
        slowest = max(slowest, (member - inside) / ranks * amount / level.rate)
        latency += level.latency if member > inside else 0.0
        inside = member
    return slowest + latency


def send(amount: float, stages: int, stride: float) -> float:
    """To the neighbouring stage; that pair binds which is farthest apart."""
    inside, slowest = 1.0, 0.0
    for level, member in zip(LEVELS, _members(stages, stride), strict=True):
        if member > inside:
            slowest = max(slowest, amount / level.rate + level.latency)
        inside = member
    return slowest


def hidden(seconds: float, work: float, share: float) -> float:
    """What shows of a collective that may hide behind a share of the work beside it."""
    return max(seconds - share * work, 0.0)


def contended(seconds: float, work: float, share: float) -> float:
    """The same where both want compute units and memory: the work loses part of the time of what is hidden, and takes
    longer, which hides more."""
    lost = CONTENTION * min(seconds, share * work / max(1 - CONTENTION * share, TINY))
    return max(seconds - share * (work + lost), 0.0) + lost
