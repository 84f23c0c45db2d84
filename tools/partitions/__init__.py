"""Hold what the tensor solver finds against other solvers, into docs/evidence/partitions.md."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.alpa import alpa_spaces
from symconfig.api import planning as api
from symconfig.cost.partition.costs import Keep, Objective
from symconfig.cost.partition.kept import floor_bytes
from symconfig.descriptor.mesh import Axis, of_cluster
from symconfig.resources import data_dir
from symconfig.solve.partition import exact
from symconfig.solve.partition.adaptive import adaptive
from symconfig.solve.partition.problem import Solution, assemble
from symconfig.solve.partition.rows import spaces
from symconfig.units import GIB
from tests.solve.partition.strategies import NAMES
from tools.pages import EVIDENCE, fill, table
from tools.partitions.cases import (
    Pair,
    Question,
    Weighed,
    answer,
    best,
    first_case,
    of_name,
    question,
    timed,
    weighed,
)
from tools.partitions.changes import adaptability
from tools.partitions.optima import known_optima
from tools.partitions.order import order
from tools.partitions.stages import stages

PAGE = EVIDENCE / "partitions.md"
MODELS = sorted(path.stem for path in (data_dir("model_zoo") / "models").glob("*.yaml"))
EXACT_S = 2.0  # a model, for the exact solver

# --- adaptive against exact -------------------------------------------------------------------------------------------

SETTINGS = (
    (8, 1, Objective.TIME, 1.15, "seconds; one sequence; 1.15 x the least memory"),
    (8, 1, Objective.SYMTENSOR, np.inf, "relative cost; one sequence; memory without limit"),
    (16, 16, Objective.TIME, 1.5, "seconds; one sequence for each GPU; 1.5 x the least memory"),
)


def pair(name: str, gpus: int, batch: int, objective: Objective, room: float) -> Pair | None:
    """None where the adaptive solver finds nothing that fits."""
    asked = question(name, "h100", gpus, batch)
    mesh = of_cluster(asked.cluster, gpus)
    axes = mesh.axes() if gpus == 8 else mesh.axes(((2, 4), (gpus // 8,)))
    costs = first_case(asked, objective, Keep.SHARDS, axes)
    limit = floor_bytes(costs, gpus) * room
    adapted, adaptive_s = timed(lambda: adaptive(costs, axes, limit))
    found = adapted.best
    if found is None:
        return None
    again = first_case(asked, objective, Keep.SHARDS, axes)  # nothing that the other has worked out
    again = replace(again, gamma=found.gamma)

    def search() -> Solution:
        rows = spaces(again, axes)
        assert rows is not None
        return exact.solve(assemble(again, rows, limit), limit_s=EXACT_S)

    other, exact_s = timed(search)
    return Pair(name, len(costs.net.nodes), found.cost, min(other.cost, found.cost), other.bound, adaptive_s, exact_s)


def quality() -> str:
    rows: list[Sequence[str]] = [
        ("GPUs, objective, memory", "models", "median", "worst", "proved", "adaptive s", "exact s", "slowest")
    ]
    for gpus, batch, objective, room, words in SETTINGS:
        every = (pair(name, gpus, batch, objective, room) for name in MODELS)
        found = [one for one in every if one is not None]
        ratios = [one.ratio for one in found]
        slow = max(found, key=lambda one: one.adaptive_s + one.exact_s)
        rows.append((
            f"{gpus}; {words}", f"{len(found)} of {len(MODELS)}", f"{statistics.median(ratios):.4f}",
            f"{max(ratios):.4f}", str(sum(one.bound >= one.exact * (1 - 1e-8) for one in found)),
            f"{sum(one.adaptive_s for one in found):.1f}", f"{sum(one.exact_s for one in found):.1f}",
            f"{slow.name}, {slow.nodes} nodes: {slow.adaptive_s:.2f}, {slow.exact_s:.2f}",
        ))  # fmt: skip
    return table(rows[0], rows[1:])


# --- fixed strategies -------------------------------------------------------------------------------------------------


def alpa(asked: Question, axes: tuple[Axis, ...], like: Weighed) -> Weighed | None:
    """The optimum of Alpa's space, run like another strategy."""
    costs = first_case(replace(asked, batch=asked.batch // like.turns), Objective.TIME, like.keep, axes)
    costs = replace(costs, training=replace(costs.training, turns=like.turns))
    every, found = spaces(costs, axes), list[Weighed]()
    assert every is not None
    for space in alpa_spaces(axes):
        rows = [some[space.allows(node, some)] for node, some in zip(costs.net.nodes, every, strict=True)]
        if all(len(some) for some in rows):
            solution = exact.solve(assemble(costs, rows, asked.limit_bytes), limit_s=EXACT_S)
            if solution.choice is not None:
                found.append(weighed(costs, tuple(tuple(r[c]) for r, c in zip(rows, solution.choice, strict=True))))
    return min(found, key=lambda one: one.cost, default=None)


def cells(asked: Question, name: str, one: Weighed | str | None, least: float) -> Sequence[str]:
    if one is None or isinstance(one, str):
        return (name, "-", "-", "-", "-", one or "nothing that fits was found")
    fits = one.fits(asked.limit_bytes)
    speed, times = (f"{asked.tokens / one.cost:,.0f}", f"{one.cost / least:.2f}") if fits else ("-", "-")
    note = f"{one.turns} turns, {one.keep}" if fits else "**out of memory**"
    return (name, f"{one.cost:.3f}" if fits else "-", speed, times, f"{one.memory / GIB:.1f}", note)


HEAD = ("strategy", "step s", "tokens/s", "x best", "GiB", "")


def fixed(model: str, gpus: int) -> str:
    asked = question(model, "h100", gpus, 8 * gpus)
    axes = of_cluster(asked.cluster, gpus).shapes()[0]
    found, adaptive_s = timed(asked.solved)
    title = f"### {model} on {gpus} x h100, {asked.batch} sequences\n\n"
    least = found.cost if found is not None else 1.0
    rows: list[Sequence[str]] = [HEAD]
    if found is not None:
        mine = answer(found)
        rows.append(cells(asked, "**adaptive**", mine, least))
        rows.append(cells(asked, "Alpa's space, its optimum", alpa(asked, found.axes, mine), least))
        times = f"Processor seconds: adaptive, all ways of running the step, {adaptive_s:.1f}.\n"
    else:
        times = f"The adaptive solver finds nothing that fits ({adaptive_s:.1f} processor seconds).\n"
    for name in NAMES:
        rows.append(cells(asked, name, best(asked, axes, of_name(name, axes)), least))
    return f"{title}{table(rows[0], rows[1:])}\n{times}"


def baselines() -> str:
    return "\n".join(fixed(model, gpus) for model in ("llama2-13b", "mixtral-8x7b") for gpus in (8, 64))


# --- degrees ----------------------------------------------------------------------------------------------------------


def ranked(model: str, cluster: str, gpus: int, batch: int) -> str:
    """The planner's best and the partition beside them."""
    result = api.plan(model, cluster, gpus, batch, 4096, top=5)
    rows: list[Sequence[str]] = [
        ("", "tp", "pp", "dp", "cp", "micro", "ZeRO", "recompute", "step s", "tokens/s", "GiB")
    ]
    for number, one in enumerate((result.best, *result.alternatives), 1):
        p, predicted = one.configuration, one.predicted
        rows.append((str(number), str(p.tp), str(p.pp), str(p.dp), str(p.cp), str(p.micro),
                     str(p.zero_stage), p.recompute, f"{predicted.step_s:.3f}",
                     f"{batch * 4096 / predicted.step_s:,.0f}", f"{predicted.peak_bytes / GIB:.1f}"))  # fmt: skip
    asked = question(model, cluster, gpus, batch)
    found = asked.solved()
    if found is not None:
        mine = answer(found)
        rows.append(("partition", "", "", "", "", "", "", f"{mine.turns} turns, {mine.keep}", f"{mine.cost:.3f}",
                     f"{asked.tokens / mine.cost:,.0f}", f"{mine.memory / GIB:.1f}"))  # fmt: skip
    weighed_ = f"{result.search.candidates:,} candidates weighed, {result.search.feasible:,} of them fit."
    return f"### {model} on {gpus} x {cluster}, {batch} sequences\n\n{table(rows[0], rows[1:])}\n{weighed_}\n"


def degrees() -> str:
    jobs = [("qwen1.5-72b", 64, 256), ("llama2-7b", 8, 64)]
    return "\n".join(ranked(m, c, g, b) for m, g, b in jobs for c in ("ascend-910b", "ascend-910c"))


SECTIONS: dict[str, Callable[[], str]] = {
    "quality": quality, "found": known_optima, "adaptability": adaptability, "degrees": degrees, "baselines": baselines,
    "stages": stages, "order": order,
}  # fmt: skip


def main() -> None:
    """Write the page, or print the sections that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="print these sections instead")
    names = parser.parse_args().only
    parts = {name: SECTIONS[name]() for name in names or SECTIONS}
    if names:
        print("\n".join(parts.values()))
    else:
        fill(PAGE, parts)
