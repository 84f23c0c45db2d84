"""What the tensor solver finds, and what it is held against, into docs/partitions.md: `python docs/partition.py`."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from partition_cases import (
    Pair,
    Question,
    Weighed,
    answer,
    best,
    customary,
    first_case,
    kept,
    of_name,
    question,
    timed,
    weighed,
)

from symconfig import api
from symconfig.cost.partition.costs import Keep, Objective
from symconfig.cost.partition.floor import floor_bytes
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.mesh import Axis
from symconfig.descriptor.mesh_source import of_cluster
from symconfig.graph.blocks.common import Implementation
from symconfig.resources import data_dir
from symconfig.solve.partition import exact, walk
from symconfig.solve.partition.adaptive import adaptive
from symconfig.solve.partition.alpa import alpa_spaces
from symconfig.solve.partition.assemble import assemble
from symconfig.solve.partition.baselines import NAMES
from symconfig.solve.partition.rows import spaces
from symconfig.solve.partition.run import Partition
from symconfig.units import GIB

PAGE = Path(__file__).with_name("partitions.md")
MODELS = sorted(path.stem for path in (data_dir("model_zoo") / "models").glob("*.yaml"))
EXACT_S = 2.0  # a model, for the exact solver
WALK_STEPS = 3000
Table = list[Sequence[str]]
ABOUT = """\
# Partitions: what the tensor solver finds

Written by `make partition`. Everything here is predicted by the same cost rules; processor seconds are those of the
machine that wrote the page and vary. *GiB* is what tensors take on one GPU at the peak; a GPU's memory less 4 % and its
context is what there is. Programs are whole models, vocabularies padded to multiples of 128, sequences of 4,096 tokens
where nothing else is said. What holds these findings in tests: `tests/solve/partition/test_found.py`,
`test_quality.py`, `test_degrees.py`.
"""


def table(rows: Table) -> str:
    """The first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def primes(asked: Question) -> tuple[Axis, ...]:
    return of_cluster(asked.cluster, asked.gpus).axes()


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
    found, adaptive_s = timed(lambda: adaptive(costs, axes, limit))
    if found is None:
        return None
    again = first_case(asked, objective, Keep.SHARDS, axes)  # nothing that the other has worked out

    def search() -> exact.Solution:
        rows = spaces(again, axes, gamma=found.gamma)
        assert rows is not None
        return exact.solve(assemble(again, rows, limit, found.gamma), limit_s=EXACT_S)

    other, exact_s = timed(search)
    return Pair(name, len(costs.net.nodes), found.cost, min(other.cost, found.cost), other.bound, adaptive_s, exact_s)


def quality() -> str:
    rows: Table = [("GPUs, objective, memory", "models", "median", "worst", "proved", "adaptive s", "exact s", "slowest")]
    for *setting, words in SETTINGS:
        found = [one for one in (pair(name, *setting) for name in MODELS) if one is not None]
        ratios = [one.ratio for one in found]
        slow = max(found, key=lambda one: one.adaptive_s + one.exact_s)
        rows.append((
            f"{setting[0]}; {words}", f"{len(found)} of {len(MODELS)}", f"{statistics.median(ratios):.4f}",
            f"{max(ratios):.4f}", str(sum(one.bound >= one.exact * (1 - 1e-8) for one in found)),
            f"{sum(one.adaptive_s for one in found):.1f}", f"{sum(one.exact_s for one in found):.1f}",
            f"{slow.name}, {slow.nodes} nodes: {slow.adaptive_s:.2f}, {slow.exact_s:.2f}",
        ))  # fmt: skip
    return f"""\
## Adaptive against exact

Cost of the adaptive solver's answer over the exact one's lower bound, on the folded graph of every model of the zoo, in
one turn; the exact solver starts from nothing and has {EXACT_S:.0f} s of the processor for each. Models for which the
adaptive solver finds nothing that fits are left out (within these limits adapters keep too much for any strategy, as
the exact solver says too). The targets are 1.05 in the median and 1.15 at worst.

{table(rows)}
On one node the exact solver is about as fast as the adaptive one: elimination on the folded graph, with rows that are
too dear dropped first, is quick where a node has some hundred rows. Where memory binds it may not end. On a mesh of more
than {4} prime factors its rows are too many and the mesh is cut into a few larger axes instead; the adaptive solver's
cuts do not grow with them.
"""


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


def walked(asked: Question, found: Partition) -> Weighed | None:
    """A random walk through the space in which the answer was found."""
    rows = spaces(found.costs, found.axes)
    assert rows is not None
    solution = walk.solve(assemble(found.costs, rows, asked.limit_bytes), 0, WALK_STEPS)
    if solution.choice is None:
        return None
    return weighed(found.costs, tuple(tuple(r[c]) for r, c in zip(rows, solution.choice, strict=True)))


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
    axes = next(iter(of_cluster(asked.cluster, gpus).shapes())) if gpus > 16 else primes(asked)
    found, adaptive_s = timed(asked.solved)
    title = f"### {model} on {gpus} x h100, {asked.batch} sequences\n\n"
    assert found is None or isinstance(found, Partition)
    least = found.cost if found is not None else 1.0
    rows: Table = [HEAD]
    if found is not None:
        mine = answer(found)
        rows.append(cells(asked, "**adaptive**", mine, least))
        rows.append(cells(asked, "Alpa's space, its optimum", alpa(asked, found.axes, mine), least))
        walk_, walk_s = timed(lambda: walked(asked, found))
        rows.append(cells(asked, f"random walk, {WALK_STEPS:,} steps", walk_, least))  # type: ignore[arg-type]
        times = f"Processor seconds: adaptive, all ways of running the step, {adaptive_s:.1f}; the walk {walk_s:.1f}.\n"
    else:
        times = f"The adaptive solver finds nothing that fits ({adaptive_s:.1f} processor seconds).\n"
    for name in NAMES:
        if name != "parameter-server":  # its links are charged apart: `symconfig partition --baselines`
            rows.append(cells(asked, name, best(asked, axes, of_name(name, axes)), least))
    return f"{title}{table(rows)}\n{times}"


def baselines() -> str:
    text = """\
## Strategies with names, under one cost

Each runs in the number of turns, and keeps for its backward, what is fastest for it and fits; where nothing fits, what
needs least. *x best*: seconds over the adaptive solver's.

"""
    return text + "\n".join(fixed(model, gpus) for model in ("llama2-13b", "mixtral-8x7b") for gpus in (8, 64))


# --- adaptability -----------------------------------------------------------------------------------------------------


def changes(cluster: str, gpus: int) -> Iterator[tuple[str, Question, Question]]:
    each = gpus
    eager = replace(question("llama2-13b", cluster, gpus, each), how=Implementation(attention="torch"))
    yield "llama2-13b: unfused attention -> flash", eager, replace(eager, how=None)
    dense = question("llama2-7b", cluster, gpus, 4 * each)
    yield "llama2-7b -> mixtral-8x7b", dense, replace(dense, model=load_model("mixtral-8x7b"))
    lora = question("qwen-7b-lora", cluster, gpus, each, 2048)
    yield "qwen-7b-lora: batch x 4 (8 -> 32 on 8 GPUs)", lora, replace(lora, batch=4 * lora.batch)


def adapted(cluster: str, gpus: int) -> Iterator[Sequence[str]]:
    for name, before, after in changes(cluster, gpus):
        old, new = before.solved(), after.solved()
        axes = new.axes if new is not None else old.axes if old is not None else primes(after)
        plans: list[Weighed | str | None] = [kept(old, after) if old is not None else None, customary(after, axes),
                                             answer(new) if new is not None else None]  # fmt: skip
        told = [_speed(after, plan) for plan in plans]
        known = [p for p in plans if isinstance(p, Weighed) and p.fits(after.limit_bytes)]
        gain = f"{plans[0].cost / plans[2].cost:.2f}" if plans[0] in known and plans[2] in known else "-"  # type: ignore[union-attr]
        yield (name, f"{gpus} x {cluster}", *told, gain)


def _speed(asked: Question, plan: Weighed | str | None) -> str:
    if plan is None or isinstance(plan, str):
        return plan or "nothing fits"
    memory = f"{plan.memory / GIB:.0f} GiB"
    if not plan.fits(asked.limit_bytes):
        return f"**out of memory**, {memory}"
    return f"{asked.tokens / plan.cost:,.0f}, {memory}"


def adaptability() -> str:
    rows: Table = [("change", "on", "kept", "Megatron's customary", "replanned", "replanned / kept")]
    for cluster in ("h100", "ascend-910b"):
        for gpus in (8, 64):
            rows += list(adapted(cluster, gpus))
    return f"""\
## When the model or the batch changes

Tokens/s and GiB. *kept*: the strategy that the adaptive solver found before the change, on the program after it, in as
many turns and keeping as much for the backward. Operators and weights of the same name with the same options keep
their rows; any other operator lies as its inputs come, a weight that is new as its operator reads it, and where all
ranks read all of it, flat in the stage that most of the old weights have. *Megatron's customary*: tensor and sequence
parallel within the node, data parallel with ZeRO-1 between nodes, in the turns and with the recomputation that are
fastest for it and fit. One sequence for each GPU before the change; four of llama2-7b's.

{table(rows)}
The paper that this solver follows reports 1.45 x for the first change, 2.2 x for the second and out of memory for the
third, on hardware that it does not state. The shape here is in the last column; nothing was fitted to theirs.
"""


# --- degrees ----------------------------------------------------------------------------------------------------------


def ranked(model: str, cluster: str, gpus: int, batch: int) -> str:
    """The planner's best and the partition beside them."""
    result = api.plan(model, cluster, gpus, batch, 4096, top=5)
    rows: Table = [("", "tp", "pp", "dp", "cp", "micro", "ZeRO", "recompute", "step s", "tokens/s", "GiB")]
    for number, one in enumerate((result.best, *result.alternatives), 1):
        p, predicted = one.parallel, one.predicted
        rows.append((str(number), str(p.tp), str(p.pp), str(p.dp), str(p.cp), str(one.batch.micro),
                     str(one.options.zero_stage), one.options.recompute, f"{predicted.step_s:.3f}",
                     f"{batch * 4096 / predicted.step_s:,.0f}", f"{predicted.peak_bytes / GIB:.1f}"))  # fmt: skip
    asked = question(model, cluster, gpus, batch)
    found = asked.solved()
    if found is not None:
        mine = answer(found)
        rows.append(("partition", "", "", "", "", "", "", f"{mine.turns} turns, {mine.keep}", f"{mine.cost:.3f}",
                     f"{asked.tokens / mine.cost:,.0f}", f"{mine.memory / GIB:.1f}"))  # fmt: skip
    weighed_ = f"{result.search.candidates:,} candidates weighed, {result.search.feasible:,} of them fit."
    return f"### {model} on {gpus} x {cluster}, {batch} sequences\n\n{table(rows)}\n{weighed_}\n"


def degrees() -> str:
    text = """\
## All degrees, and the partition beside them

`symconfig plan --top 5` over all tp, pp, dp, and what `symconfig partition` finds on the same devices without a
pipeline: other rules of cost (no framework's buffers and no idle time of a pipeline), so that seconds of the two
compare roughly.

"""
    jobs = [("qwen1.5-72b", 64, 256), ("llama2-7b", 8, 64)]
    return text + "\n".join(ranked(m, c, g, b) for m, g, b in jobs for c in ("ascend-910b", "ascend-910c"))


SECTIONS: dict[str, Callable[[], str]] = {
    "quality": quality, "adaptability": adaptability, "degrees": degrees, "baselines": baselines,
}  # fmt: skip


def main(names: Iterable[str] | None) -> None:
    text = "\n".join([ABOUT, *(SECTIONS[name]() for name in names or SECTIONS)])
    if names:
        print(text)
    else:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="print these sections instead")
    main(parser.parse_args().only)
