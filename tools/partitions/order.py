"""Whether the relative cost puts strategies in the order of their seconds, for docs/evidence/partitions.md."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from statistics import median

import numpy as np

from symconfig.cost.partition.costs import Keep, Objective, Training
from symconfig.descriptor.mesh import of_cluster
from symconfig.measured.score import kendall
from symconfig.resources import data_dir
from symconfig.solve.partition.problem import price
from symconfig.solve.partition.run import Ask, Case, costs_of, folded
from tests.solve.partition.strategies import named_rows, way
from tools.pages import table
from tools.partitions.cases import Question, question

MODELS = sorted(path.stem for path in (data_dir("model_zoo") / "models").glob("*.yaml"))
CLUSTER, GPUS = "h100", 16  # two nodes: a fast level and a slow one
SIZES = (1, 2, 4, 8, 16)  # of tensor and of context parallelism


def order() -> str:
    rows, every = [], list[tuple[float, ...]]()
    for name in MODELS:
        found = _of(question(name, CLUSTER, GPUS, GPUS))
        if found is None:
            rows.append((name, "none", "", "", "", ""))
            continue
        count, figures = found
        every.append(figures)
        taus, slower = figures[:2], figures[2:]
        rows.append((name, f"{count:,}", *(f"{tau:.2f}" for tau in taus), *(f"{times:.2f} x" for times in slower)))
    middle = [median(figures) for figures in zip(*every, strict=True)]
    ends = [f"{tau:.2f}" for tau in middle[:2]] + [f"{times:.2f} x" for times in middle[2:]]
    head = ("model", "strategies", "tau, gamma ∞", "tau, gamma even", "slower, gamma ∞", "slower, gamma even")
    return table(head, [*rows, ("**median**", "", *ends)])


def _of(asked: Question) -> tuple[int, tuple[float, ...]] | None:
    """Strategies compared; their tau by each gamma, and how much slower the first of them is than the fastest."""
    case = Case(folded(asked.program(1)), Training(keep=Keep.SHARDS))
    axes = of_cluster(asked.cluster, asked.gpus).axes()
    ways = [
        way(tp, cp, asked.gpus // (tp * cp), sequence_parallel=sp, zero=zero)
        for tp, cp, sp, zero in product(SIZES, SIZES, (False, True), range(4))
        if tp * cp <= asked.gpus and (tp > 1 or not sp)
    ]
    made = (named_rows(case.net, axes, "megatron-tp", way) for way in ways)
    some = [rows for rows in made if rows is not None]
    if not some:
        return None
    timed, relative = (
        costs_of(case, Ask(of_cluster(asked.cluster, asked.gpus), asked.cluster, np.inf, objective), axes)
        for objective in (Objective.TIME, Objective.SYMTENSOR)
    )
    seconds, moved = (np.array([price(of, rows)[0] for rows in some]) for of in (timed, relative))
    kept = np.array([price(replace(relative, gamma=1.0), rows)[0] for rows in some]) - moved
    costs = [moved, moved + kept * float(np.median(moved) / np.median(kept))]
    taus = [kendall(list(zip(cost.tolist(), seconds.tolist(), strict=True))) for cost in costs]
    return len(some), (*taus, *(float(seconds[int(cost.argmin())] / seconds.min()) for cost in costs))
