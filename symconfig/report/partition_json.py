"""The JSON of `symconfig partition`, schema `symconfig.partition/3`, and of `--stages`, `symconfig.pipeline/2`.

    {"schema", "name", "job", "objective", "unit": "seconds" | "elements",
     "mesh": {"gpus", "levels": [{"name", "size", "bandwidth_bytes_per_s", "latency_s"}], "axes": [{"level", "size"}]},
     "solution": {"cost", "memory_bytes", "memory_limit_bytes", "gamma", "solver", "optimal", "closed", "bound", "gap",
                  "microbatches", "keep", "operators", "parameters"},
     "spent": {computation, optimizer, communication, overlapped, relative, and bytes by kind},
     "operators": [{"name", "times", "does": [{"option", "parts": [{"level", "size"}]}], "tensors": [LAYOUT…]}],
     "parameters": [{"name", "path", "times", "does", "layout": LAYOUT, "zero": {LEVEL: stage}}],
     "collectives": [{"tensor", "producer", "consumer", "phase", "kind", "level", "ranks", "amount", "times", "cost",
                      "exposed"}],
     "baselines": [{"name", "cost", "memory_bytes", "microbatches", "keep"}],
     "notes": [text],
     "rewrites": {"taken": [{"rule", "words", "places", "cost"}], "cost_before", "cost", "solved", "exhausted"}}
    LAYOUT = {"tensor", "role": "input" | "output", "dims": [{"dim", "size", "parts": [{"level", "size"}]}],
              "strategy": [s_1 … s_k], "partial", "flat": [{"level", "size"}], "gradient": the same without role | null}

Operators and parameters are those of the folded program; `times` says for how many each stands. `optimal`: no strategy
with these microbatches and what is kept costs less; `closed`: nor with any other that was asked for. A baseline that
does not fit has nulls. `rewrites` is there with --rewrite: after each the adaptive solver's cost, null where nothing
fits; before and after all of them the asked solver's; `places` has the words of each place. Equal inputs give equal
bytes where no solver and no search of rewrites ran into its limit of time.

    {"schema": "symconfig.pipeline/2", "name", "job", "mesh": {"gpus", "levels"},
     "solution": {"step_s", "microbatches", "idle", "memory_limit_bytes", "layers", "solved"},
     "stages": [{"operators": {"first", "last", "count"}, "gpus", "microbatch_s", "once_s", "in_flight",
                 "memory_bytes", "keep", "like", "partition": …}]}

`layers`: what the operators were grouped into, between which a cut may be. `like`: the first stage, from 0, that is the
same and split the same way. `partition`: as `symconfig.partition/3`, of the stage with what it receives and sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from symconfig.descriptor.mesh import Axis
from symconfig.format import picked
from symconfig.graph.program.net import Node, Port
from symconfig.report.partition import Contents, Staged, stage_operators
from symconfig.solve.partition.rewritten import Rewritten
from symconfig.solve.partition.rows import Layout, does, layout


def to_dict(report: Contents) -> dict[str, Any]:
    """Return the report as JSON, symconfig.partition/3: mesh, solution, costs (`spent`; seconds or elements), operators
    and parameters with layouts, collectives, baselines and notes.
    """
    partition = report.partition
    nodes = list(zip(partition.net.nodes, partition.rows, strict=True))
    return {
        "schema": "symconfig.partition/3",
        "name": partition.net.program.name,
        "job": report.job,
        "objective": partition.ask.objective.value,
        "unit": "seconds" if report.timed else "elements",
        "mesh": {
            "gpus": partition.ask.mesh.gpus,
            "levels": list(map(asdict, partition.ask.mesh.levels)),
            "axes": [{"level": axis.level, "size": axis.size} for axis in partition.axes],
        },
        "solution": _solution(report),
        "spent": asdict(report.spent),
        "operators": [
            {
                "name": node.name,
                "times": node.times,
                "does": _does(node, row, partition.axes),
                "tensors": [_tensor(port, row, partition.axes) for port in node.ports],
            }
            for node, row in nodes
            if node.operator is not None
        ],
        "parameters": [_parameter(node, row, partition.axes) for node, row in nodes if node.parameter is not None],
        "collectives": [
            {name: str(value) if name in ("phase", "kind") else value for name, value in asdict(one).items()
             if name != "link"} for one in report.moved
        ],
        "baselines": [
            {"name": name, **dict.fromkeys(("cost", "memory_bytes", "microbatches", "keep"))} if one is None else
            {"name": name, "cost": one.cost, "memory_bytes": one.memory,
             "microbatches": one.costs.training.turns, "keep": one.costs.training.keep.value}
            for name, one in report.compared.items()
        ],
        "notes": list(report.notes),
        **({"rewrites": _rewrites(report.rewritten)} if report.rewritten is not None else {}),
    }  # fmt: skip


def _rewrites(found: Rewritten) -> dict[str, Any]:
    """Return the rewrites taken as JSON, with the cost after each, before and after all, and the graphs solved for."""
    return {
        "taken": [
            {
                **picked(one.rewrite, "rule", "words"),
                "places": list(one.rewrite.each),
                "cost": one.cost if isfinite(one.cost) else None,
            }
            for one in found.taken
        ],
        "cost_before": found.before.cost if found.before is not None else None,
        "cost": found.partition.cost,
        **picked(found, "solved", "exhausted"),
    }


def _solution(report: Contents) -> dict[str, Any]:
    """Return the solution as JSON: cost, memory and its limit, gamma (None if infinite), solver and what it proves,
    microbatches, what is kept, and the numbers of operators and parameters in the program and folded.
    """
    partition, net = report.partition, report.partition.net
    return {
        "cost": partition.cost,
        "memory_bytes": partition.memory,
        "memory_limit_bytes": partition.ask.memory_limit,
        "gamma": partition.gamma if isfinite(partition.gamma) else None,
        **picked(partition, "solver", "optimal", "closed", "bound", "gap"),
        "microbatches": partition.costs.training.turns,
        "keep": partition.costs.training.keep.value,
        "operators": {"program": len(net.program.operators), "folded": sum(n.operator is not None for n in net.nodes)},
        "parameters": {
            "program": len(net.program.parameters),
            "folded": sum(n.parameter is not None for n in net.nodes),
        },
    }


def _does(node: Node, row: Sequence[int], axes: Sequence[Axis]) -> list[dict[str, Any]]:
    return [{"option": name, "parts": list(map(asdict, parts))} for name, parts in does(node, row, axes)]


def _tensor(port: Port, row: Sequence[int], axes: Sequence[Axis]) -> dict[str, Any]:
    gradient = _layout(port, layout(port, row, axes, backward=True)) if port.tensor.gradient else None
    role = "output" if port.output else "input"
    return {"tensor": port.tensor.name, "role": role, **_layout(port, layout(port, row, axes)), "gradient": gradient}


def _layout(port: Port, layout: Layout) -> dict[str, Any]:
    """Return a tensor's layout as JSON: each dim's name, size and parts, the strategy, and parts of partial sums and of
    flat.
    """
    dims = zip(layout.dims, port.sizes, layout.parts, strict=True)
    return {
        "dims": [{"dim": dim, "size": size, "parts": list(map(asdict, parts))} for dim, size, parts in dims],
        "strategy": list(layout.strategy),
        "partial": list(map(asdict, layout.partial)),
        "flat": list(map(asdict, layout.flat)),
    }


def _parameter(node: Node, row: Sequence[int], axes: Sequence[Axis]) -> dict[str, Any]:
    """Return a parameter as JSON: name, path, `times`, split, the layout of its tensor, and `zero`: {mesh level: the
    highest ZeRO stage on the level's axes}.
    """
    assert node.parameter is not None
    zero: dict[str, int] = {}
    for option, axis in zip(row, axes, strict=True):
        zero[axis.level] = max(zero.get(axis.level, 0), node.options[option].zero)
    return {
        "name": node.name,
        "path": node.parameter.path,
        "times": node.times,
        "does": _does(node, row, axes),
        "layout": _tensor(node.ports[0], row, axes),
        "zero": zero,
    }


def stages_dict(staged: Staged) -> dict[str, Any]:
    """Return the report as JSON, symconfig.pipeline/2: mesh, solution (seconds, microbatches, idle share, memory limit,
    numbers of layers and of solved partitions), and each stage with its partition.
    """
    pipeline, ask = staged.pipeline, staged.ask
    return {
        "schema": "symconfig.pipeline/2",
        "name": pipeline.program.name,
        "job": staged.job,
        "mesh": {"gpus": ask.mesh.gpus, "levels": list(map(asdict, ask.mesh.levels))},
        "solution": {
            "step_s": pipeline.step_s,
            "microbatches": pipeline.turns,
            "idle": pipeline.idle,
            "memory_limit_bytes": ask.memory_limit,
            "layers": len(pipeline.cuts) - 1,
            "solved": pipeline.solved,
        },
        "stages": [_stage(staged, number) for number in range(len(pipeline.stages))],
    }


def _stage(staged: Staged, number: int) -> dict[str, Any]:
    """Return stage `number` (from 0) as JSON: operators, GPUs, seconds, microbatches in flight, memory, partition."""
    stage, operators = staged.pipeline.stages[number], stage_operators(staged.pipeline, number)
    return {
        "operators": {"first": operators[0], "last": operators[-1], "count": len(operators)},
        "gpus": stage.gpus,
        "microbatch_s": stage.turn_s,
        "once_s": stage.once_s,
        "in_flight": stage.alive,
        "memory_bytes": stage.memory,
        "keep": stage.keep.value,
        "like": staged.pipeline.like[number],
        "partition": to_dict(staged.contents[number]),
    }
