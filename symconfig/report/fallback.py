"""What `symconfig fallback` says: every smaller cluster with its plan, what is lost there, and how the run goes on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from symconfig.errors import Problem
from symconfig.format import count, either, percent, seconds, things
from symconfig.plan import Candidate
from symconfig.render.fallback import folder
from symconfig.replan.fallback import Fallback, Smaller
from symconfig.report.checkpoint import steps
from symconfig.report.grid import Block, Grid
from symconfig.report.table import recompute_text

SCHEMA = "symconfig.fallback/1"


def blocks(found: Fallback) -> list[Block]:
    """Everything that is shown of it, in order."""
    plan, nodes = found.plan, found.nodes
    head = (f"{plan.model.name} on {things(nodes.count, 'node')} of {count(nodes.gpus)} x {plan.cluster.gpu.product}, "
            f"and on fewer, with the same global batch of {count(plan.best.batch.global_)} sequences")
    rows = [_row(found, nodes.count, plan.best, "", "")]
    rows += [_row(found, each.nodes, each.plan.best, _lost(found.share(each)), each.loads.verdict.value)
             for each in found.smaller if each.plan and each.loads]
    grid = Grid(("nodes", "GPUs", "tp", "pp", "cp", "ep", "dp", "micro", "recompute", "step s", "tokens/s",
                 "lost beside the nodes", "the checkpoint loads"), tuple(rows), left=(8, 12))
    return [head, grid, *_unfit(found), *_steps(found)]


def _row(found: Fallback, nodes: int, best: Candidate, lost: str, loads: str) -> tuple[str, ...]:
    p = best.parallel
    return (count(nodes), count(p.world_size), *map(str, (p.tp, p.pp, p.cp, p.ep, p.dp, best.batch.micro)),
            recompute_text(best.options.recompute), seconds(best.predicted.step_s), count(_tokens_per_s(best)), lost,
            loads)


def _tokens_per_s(best: Candidate) -> float:
    return best.predicted.tokens_per_s_per_gpu * best.parallel.world_size


def _lost(share: float | None) -> str:
    """Of the speed that the nodes that are left would have if all scaled with their number."""
    if share is None:
        return ""
    return percent(1 - share) if share < 1 else f"none, {percent(share - 1)} gained"


def _unfit(found: Fallback) -> list[str]:
    """Why there is no plan for a number of nodes."""
    return [f"No plan for {things(each.nodes, 'node')} ({count(each.gpus)} GPUs):\n"
            + "\n".join(f"- {problem}" for problem in each.problems) for each in found.smaller if each.plan is None]


def _steps(found: Fallback) -> list[str]:
    """What a checkpoint of the whole cluster needs before the smaller ones go on from it."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for each in found.smaller:
        if each.loads is not None and each.loads.how:
            alike.setdefault(tuple(steps(each.loads.how)), []).append(each.nodes)
    return ["\n".join((f"To go on from the checkpoint on {_either(nodes)}:", *said))
            for said, nodes in alike.items()]


def _either(nodes: list[int]) -> str:
    """`3, 2 or 1 node`: the noun goes with the last number."""
    return f"{either(nodes)} {'node' if nodes[-1] == 1 else 'nodes'}"


def to_dict(found: Fallback) -> dict[str, Any]:
    """The JSON contract of `symconfig fallback --json`, and fallback.json."""
    best = found.plan.best
    return {
        "schema": SCHEMA,
        "plan": {"nodes": found.nodes.count, "gpus_per_node": found.nodes.gpus, **_figures(found.nodes.count, best)},
        "smaller": [_smaller(found, each) for each in found.smaller],
    }


def _figures(nodes: int, best: Candidate) -> dict[str, Any]:
    return {"folder": folder(nodes), "gpus": best.parallel.world_size, "parallel": asdict(best.parallel),
            "step_s": best.predicted.step_s, "tokens_per_s": _tokens_per_s(best)}


def _smaller(found: Fallback, each: Smaller) -> dict[str, Any]:
    figures = {"folder": None, "gpus": each.gpus, "parallel": None, "step_s": None, "tokens_per_s": None}
    if each.plan is not None:
        figures = _figures(each.nodes, each.plan.best)
    return {"nodes": each.nodes, "lost": each.lost, **figures, "share_of_proportional": found.share(each),
            "loadable": each.loads.to_dict() if each.loads is not None else None,
            "problems": [{name: getattr(problem, name) for name in Problem.__slots__} for problem in each.problems]}
