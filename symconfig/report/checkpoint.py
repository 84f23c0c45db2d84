"""Whether a run goes on from a checkpoint: of `symconfig checkpoint`, and of `replan --lose-nodes` on fewer nodes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from symconfig.format import count, either, gib, percent, picked, seconds, several
from symconfig.plans.configuration import DEGREES
from symconfig.plans.plan import Candidate
from symconfig.plans.sentences import caveats
from symconfig.render.several import node_folder
from symconfig.report.grid import Block, Grid, present, titled
from symconfig.runs.checkpoint.folder import Checkpoint
from symconfig.runs.checkpoint.table import Loadable, Step, Verdict
from symconfig.runs.replan.replanned import Fallback, Smaller
from symconfig.units import GIB, MIB

_RUNS = {"old": "the old run, once more,", "between": "between the runs,", "new": "the new run"}

_SENTENCES = {
    Verdict.AS_IS: "It loads as it is.",
    Verdict.RESHARDED: "It loads; each rank reads its part of another layout.",
    Verdict.CONVERTED: "It loads after a conversion.",
    Verdict.WEIGHTS: "Its weights load, and nothing else.",
    Verdict.NO: "It does not load.",
}

OTHERWISE = {
    Verdict.WEIGHTS: "Without the conversion its weights load, and nothing else:",
    Verdict.NO: "Without the conversion nothing loads.",
}


def contents(checkpoint: Checkpoint) -> list[Block]:
    """Return the head line of a checkpoint (kind, iteration if known, size), a table of its releases, degrees and saved
    arguments that are known.
    """
    where = "" if checkpoint.iteration is None else f", iteration {count(checkpoint.iteration)}"
    size = checkpoint.size_bytes
    amount = f"{gib(size)} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"
    releases = " to ".join(filter(None, dict.fromkeys((checkpoint.since, checkpoint.until))))
    head = f"{checkpoint.folder}: {checkpoint.kind}{where}, {amount}"
    facts = {"written by": releases or None, **checkpoint.degrees, **checkpoint.says}
    rows = tuple((name, str(value)) for name, value in facts.items() if value is not None)
    return present(head, Grid(("of the run", "value"), rows, left=(0,)))


def verdict(loadable: Loadable) -> list[Block]:
    """Return whether a checkpoint loads, the steps, what starts anew and why (empty parts left out); if it must be
    converted, also the alternative without a conversion, with its steps.
    """
    blocks = [f"{loadable.verdict.value.capitalize()}: {_SENTENCES[loadable.verdict]}", *steps(loadable.how)]
    if loadable.verdict is Verdict.CONVERTED:
        blocks += [OTHERWISE[loadable.otherwise], *steps(loadable.otherwise_how)]
    why = titled("Why:", (f"{reason.text} [{reason.source}]" for reason in loadable.reasons), "- ")
    return present(*blocks, titled("Starts anew:", loadable.lost, "- "), why)


def steps(how: tuple[Step, ...]) -> list[str]:
    """Return each step as text, its command or options on a line of their own."""
    return [f"{_RUNS[step.run].capitalize()} {step.does}:\n  {step.words}" for step in how]


SCHEMA = "symconfig.fallback/1"

_NUMBERS = 12  # columns in front of what loads


def blocks(fallback: Fallback) -> list[Block]:
    """Return all blocks of a fallback: a title, a table with a row for the full plan and each smaller one, caveats, why
    some numbers of nodes have no plan, other batch sizes, how to save, and conversions.
    """
    plan, nodes = fallback.plan, fallback.nodes
    head = (
        f"{plan.model.name} on {several(nodes.count, 'node')} of {count(nodes.gpus)} x {plan.cluster.gpu.product} "
        f"({plan.cluster.name}), "
        f"and on fewer, with the same global batch of {count(plan.best.configuration.global_batch)} sequences"
    )
    rows = [_row(fallback, nodes.count, plan.best, "", ("", ""))]
    for each in fallback.smaller:
        if each.plan is not None and each.loads is not None:
            advisedly = fallback.advisedly(each)
            loads = (each.loads.verdict.value, advisedly.verdict.value if advisedly is not None else "")
            share = fallback.share(each) or 0.0
            lost = percent(1 - share) if share < 1 else f"none, {percent(share - 1)} gained"
            rows.append(_row(fallback, each.nodes, each.plan.best, lost, loads))
    grid = Grid.of(rows, words=("recompute", *list(rows[0])[_NUMBERS:]))
    others = [f"On {several(each.nodes, 'node')}: {each.other_batch}" for each in fallback.smaller if each.other_batch]
    every = [(nodes.count, plan), *((each.nodes, each.plan) for each in fallback.smaller if each.plan is not None)]
    notes = [f"{several(number, 'node')}: {text}" for number, one in every for text in caveats(one)]
    unfit = (
        f"No plan for {several(each.nodes, 'node')} ({count(each.gpus)} GPUs):\n"
        + "\n".join(f"- {problem}" for problem in each.problems)
        for each in fallback.smaller
        if each.plan is None
    )
    old = [each.nodes for each in fallback.smaller if each.loads and any(step.run == "old" for step in each.loads.how)]
    saved = " saved without that option" if fallback.advised is not None else ""
    shown: list[Block] = [head, grid, *notes, *unfit, *others, "\n".join(advice(fallback))]
    if old:
        shown.append(
            f"For {_either(old)} a checkpoint{saved} is converted by one more run of the old layout. "
            "`symconfig checkpoint DIR --plan PLAN.json` has the steps."
        )
    return shown


def advice(fallback: Fallback, start: str = "") -> list[str]:
    """Return sentences on how the full run should save so that smaller plans load without a conversion; [] without
    smaller plans. If no option helps, one sentence: that all load so anyway, or that some do not, with their verdicts.
    Else which options, with exceptions, and their cost. start: the command that starts the run, if options may follow
    it.
    """
    planned = [each for each in fallback.smaller if each.plan is not None]
    if not planned:
        return []
    advised = fallback.advised
    loads = [(each.nodes, fallback.advisedly(each) or each.loads) for each in planned]
    short = [(nodes, load.verdict.value) for nodes, load in loads if load and not load.verdict.unconverted]
    rest = "; ".join(f"{several(nodes, 'node')}: {verdict}" for nodes, verdict in short)
    if advised is None:
        if not short:
            return ["Every plan here goes on from what the run on all nodes saves, without a conversion."]
        return [f"No option for saving lets the smaller clusters go on without a conversion ({rest})."]
    command = f" with `{start} {advised.options}`" if start else f" with {advised.options}"
    well = [nodes for nodes, _ in loads if nodes not in dict(short)]
    whom = f"{_either(well)} can go on" if short else "every plan here goes on"
    return [
        f"Start the run on all nodes{command}, from its first save on: then {whom} from its checkpoint without a "
        f"conversion{f' (except {rest})' if rest else ''}.",
        f"What that costs: {advised.costs} [{advised.source}].",
    ]


def _row(fallback: Fallback, nodes: int, best: Candidate, lost: str, loads: tuple[str, str]) -> dict[str, str]:
    """Return a row for a number of nodes. lost: throughput lost, as text; loads: (verdict as saved by default, as
    advised), the second only shown if options are advised.
    """
    advised = {} if fallback.advised is None else {f"saved with {fallback.advised.options}": loads[1]}
    return {
        "nodes": count(nodes),
        "GPUs": count(best.configuration.world_size),
        **{name: str(getattr(best.configuration, name)) for name in ("tp", "pp", "cp", "ep", "dp")},
        "micro": str(best.configuration.micro),
        "recompute": best.configuration.recompute_text,
        "step s": seconds(best.predicted.step_s),
        "tokens/s": count(best.tokens_per_s),
        "lost beside the nodes": lost,
        "the checkpoint loads": loads[0],
        **advised,
    }


def _either(nodes: list[int]) -> str:
    """Return numbers joined by "or" with the noun: `3, 2 or 1 node`."""
    return f"{either(nodes)} {'node' if nodes[-1] == 1 else 'nodes'}"


def to_dict(fallback: Fallback) -> dict[str, Any]:
    """Return the JSON of `symconfig replan --lose-nodes --json`, also in fallback.json: figures of the full plan, how
    it should save (`saving`: None if as it does by default; `advice`: sentences), and each smaller number of nodes.
    """
    best = fallback.plan.best
    return {
        "schema": SCHEMA,
        "plan": {
            "nodes": fallback.nodes.count,
            "gpus_per_node": fallback.nodes.gpus,
            **_figures(fallback.nodes.count, best),
        },
        "saving": asdict(fallback.advised) if fallback.advised is not None else None,
        "advice": advice(fallback),
        "smaller": [_smaller(fallback, each) for each in fallback.smaller],
    }


def _figures(nodes: int, best: Candidate) -> dict[str, Any]:
    """Return a plan's JSON: folder of its files, GPUs, degrees, seconds of a step, tokens per second of all GPUs."""
    return {
        "folder": node_folder(nodes),
        "gpus": best.configuration.world_size,
        "parallel": picked(best.configuration, *DEGREES),
        "step_s": best.predicted.step_s,
        "tokens_per_s": best.tokens_per_s,
    }


def _smaller(fallback: Fallback, each: Smaller) -> dict[str, Any]:
    """Return a smaller number of nodes as JSON: its plan's figures (None but `gpus` without a plan), efficiency,
    whether the full plan's checkpoint loads, as saved by default and as advised (None if not applicable), and problems.
    """
    advisedly = fallback.advisedly(each)
    figures = {"folder": None, "gpus": each.gpus, "parallel": None, "step_s": None, "tokens_per_s": None}
    if each.plan is not None:
        figures = _figures(each.nodes, each.plan.best)
    return {
        "nodes": each.nodes,
        "lost": each.lost,
        **figures,
        "share_of_proportional": fallback.share(each),
        "loadable": each.loads.to_dict() if each.loads is not None else None,
        "loadable_as_advised": advisedly.to_dict() if advisedly is not None else None,
        "other_batch": each.other_batch,
        "problems": [asdict(problem) for problem in each.problems],
    }
