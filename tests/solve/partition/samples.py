"""Random problems: small ones of any shape, and large ones in the form of networks on a mesh of levels."""

from __future__ import annotations

from itertools import product

import numpy as np

from symconfig.solve.partition.problem import Array, Edge, Node, Problem

SHAPES = ("tree", "cycle", "clique", "parallel", "parts", "any")


def ends(shape: str, count: int, random: np.random.Generator) -> list[tuple[int, int]]:
    tree = [(int(random.integers(v)), v) for v in range(1, count)]
    if shape == "tree":
        return tree
    if shape == "cycle":
        return [(v, (v + 1) % count) for v in range(count)] if count > 2 else tree
    if shape == "clique":
        return [(u, v) for v in range(count) for u in range(v)]
    if shape == "parallel":
        return [end for u, v in tree for end in ((u, v), (v, u))]
    if shape == "parts":
        return [(u, v) for u, v in tree if v % 3]
    return [(u, v) for v in range(count) for u in range(v) if random.random() < 0.5]


def dense_edge(u: int, v: int, cost: Array, memory: Array | None = None) -> Edge:
    """An edge whose tables have a row for each choice of u and a column for each choice of v."""
    return Edge(u, v, cost, memory if memory is not None and memory.any() else None, *map(np.arange, cost.shape))


def small(seed: int) -> Problem:
    """At most 5,000 assignments, in whole numbers. Some with forbidden choices, some that nothing fits."""
    random = np.random.default_rng(seed)
    shape = SHAPES[seed % len(SHAPES)]
    count = int(random.integers(1, 7))
    sizes = random.integers(1, 1 + {1: 40, 2: 30, 3: 12, 4: 8, 5: 5, 6: 4}[count], count)
    forbid = 0.0 if seed % 2 else 0.15
    heavy = seed % 5 == 0  # pairs hold memory, too

    def costs(*shape: int) -> Array:
        values = random.integers(0, 30, shape).astype(float)
        return np.where(random.random(shape) < forbid, np.inf, values)

    def node(v: int) -> Node:
        n = int(sizes[v])
        cost = costs(n)
        cost[0] = 1.0 if not np.isfinite(cost).any() else cost[0]
        memory = np.floor(60 / (1 + np.where(np.isfinite(cost), cost, 1))) + random.integers(0, 12, n)
        return Node(f"n{v}", cost, memory, random.integers(0, 25, n).astype(float))

    def edge(u: int, v: int) -> Edge:
        shape = (int(sizes[u]), int(sizes[v]))
        return dense_edge(u, v, costs(*shape), random.integers(0, 10, shape) * float(heavy))

    nodes = tuple(map(node, range(count)))
    edges = tuple(edge(u, v) for u, v in ends(shape, count, random))
    least = sum(float(n.memory.min()) for n in nodes)
    limit = (np.inf, least * 1.2 + 10, least * 1.6 + 20, least * 0.9, least + 12)[int(random.integers(5))]
    return Problem(nodes, edges, float(np.floor(limit)) if np.isfinite(limit) else limit)


def network(seed: int, count: int, options: int, levels: int, slack: float = np.inf, skip: int = 3) -> Problem:
    """A chain with residual links over `skip` nodes: every level of a mesh takes one option at each node, and a pair
    costs by level where its options differ. slack: the limit over the least memory of the nodes.
    """
    random = np.random.default_rng(seed)
    sizes, speeds = np.array([8, 4, 8, 4][:levels]), np.array([4.0, 2.0, 1.0, 0.5][:levels])
    rows = np.array(list(product(range(options), repeat=levels)))
    nodes, whole = [], []
    for v in range(count):
        work, bytes_ = float(10 ** random.uniform(-1, 1)), float(10 ** random.uniform(0, 2))
        splits = random.random(options) < 0.7  # whether an option shares the work, and whether it shares the bytes
        shares = random.random(options) < 0.6
        splits[0] = shares[0] = False
        sums = random.random(options) < 0.3  # leaves partial sums
        parts = np.where(splits[rows], sizes, 1).prod(axis=1)
        pieces = np.where(shares[rows], sizes, 1).prod(axis=1)
        traffic = (np.where(sums[rows], bytes_ / 20, 0.0) / speeds).sum(axis=1) / pieces
        nodes.append(Node(f"n{v}", 50 * work / parts + traffic, bytes_ * 1e9 / pieces, bytes_ * 1e8 / parts))
        whole.append((bytes_, pieces))
    ends_ = [(v, v + 1) for v in range(count - 1)] + [(v, v + skip) for v in range(0, count - skip, skip - 1)]
    edges = []
    for u, v in ends_:
        bytes_, pieces = whole[u]
        move = random.integers(1, 4, (options, options)).astype(float)
        move[0] = 0.0  # from whole to anything: a slice
        np.fill_diagonal(move, 0.0)
        by_level = sum(move[rows[:, k][:, None], rows[:, k]] / speeds[k] for k in range(levels))
        edges.append(dense_edge(u, v, by_level * bytes_ / 20 / np.sqrt(pieces)[:, None]))
    limit = slack * sum(float((n.memory + 0.0).min()) for n in nodes)
    limit += max(float(n.transient.min()) for n in nodes) if np.isfinite(limit) else 0.0
    return Problem(tuple(nodes), tuple(edges), limit)
