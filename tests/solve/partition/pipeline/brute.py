"""Every cut of a small program into stages, on every choice of parts of a mesh: the oracle of the dynamic program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import permutations
from math import inf, prod
from pathlib import Path

import numpy as np

from symconfig.cost.partition import rates
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import of_cluster
from symconfig.graph.operator import Operator
from symconfig.graph.program.program import Program
from symconfig.graph.program.read import load_program
from symconfig.solve.partition.pipeline.stage import Parts, submeshes
from symconfig.solve.partition.problem import price
from symconfig.solve.partition.run import Ask, Solver, partition


def least_step_s(program: Program, ask: Ask, least: int, most: int) -> float:
    """Between any two operators; every stage by the tensor solver, anew for each number of microbatches in flight."""
    parts, meshes = Parts(program), submeshes(ask.mesh)
    turns, between = ask.turns[0], rates.between_stages(ask.mesh, ask.cluster)

    @cache
    def stage(start: int, stop: int, mesh: int, alive: int) -> tuple[float, float]:
        """Seconds of a microbatch, and of a step of the stage alone."""
        training = replace(ask.training, alive=alive)
        mine = replace(ask, mesh=meshes[mesh], training=training, between=between)
        found = partition(lambda turns: parts.program_of(start, stop), mine)
        if found is None:
            return inf, inf
        twice = replace(found.costs, training=replace(found.costs.training, turns=2 * turns))
        cost, _ = price(twice, np.array(found.rows, dtype=np.int64).reshape(len(found.rows), -1))
        tied = sum(prod(program.sizes[dim] for dim in one.tensor.dims) for one in parts.shared(start, stop))
        sent = float(between(4.0 * tied / meshes[mesh].gpus)) if tied else 0.0
        return (cost - found.cost) / turns, found.cost + sent

    def step_s(cuts: tuple[int, ...], taken: tuple[int, ...]) -> float:
        count = len(taken)
        every = [stage(cuts[n], cuts[n + 1], mesh, min(count - n, turns)) for n, mesh in enumerate(taken)]
        return sum(turn for turn, _ in every) + max(whole - turn for turn, whole in every)

    gpus = [mesh.gpus for mesh in meshes]
    return min(
        (
            step_s(cuts, taken)
            for number in range(least, most + 1)
            for cuts in _cuts(len(program.operators), number)
            for taken in _taken(gpus, number, gpus[-1])
        ),
        default=inf,
    )


def orders(program: Program) -> list[tuple[Operator, ...]]:
    """Every order in which the program's operators may run."""
    return [
        order
        for order in permutations(program.operators)
        if all(
            {use.name for use in op.inputs}.isdisjoint(use.name for later in order[n:] for use in later.outputs)
            for n, op in enumerate(order)
        )
    ]


def _cuts(operators: int, stages: int) -> Iterator[tuple[int, ...]]:
    from itertools import combinations

    for inner in combinations(range(1, operators), stages - 1):
        yield (0, *inner, operators)


def _taken(gpus: list[int], stages: int, left: int) -> Iterator[tuple[int, ...]]:
    if stages == 0:
        if left == 0:
            yield ()
        return
    for number, many in enumerate(gpus):
        if many <= left:
            yield from ((number, *rest) for rest in _taken(gpus, stages - 1, left - many))


CLUSTER = load_cluster("h100")


def chain(folder: Path, widths: list[int], *, skip: bool = False, tied: bool = False) -> Program:
    """Products of examples with one weight after the other. skip: what the first gives is added at the end. tied: the
    first and the last weight are one."""
    count = len(widths) - 1
    dims = [f"h{n}" for n in range(count + 1)]
    names = [f"w{n}" for n in range(count)]
    sizes = ", ".join(f"{dim}: {size}" for dim, size in zip(dims, widths, strict=True))
    weights = ", ".join(f"{name}: [h{n}, h{n + 1}]" for n, name in enumerate(names) if not (tied and n == count - 1))
    last = "w0[h1,h0]" if tied else names[-1]
    lines = [f"y{n + 1}[b,h{n + 1}] = y{n}[b,h{n}] * {last if n == count - 1 else names[n]}" for n in range(count)]
    if tied:
        lines[-1] = f"y{count}[b,h0] = y{count - 1}[b,h1] * w0[h0,h1]"
    end = f"y{count}"
    if skip:
        lines.append(f"z[b,h{count}] = add({end}, y1[b,h{count}])")
        end = "z"
    text = "\n".join((
        "schema: symconfig.program/1", "name: chain", f"dims: {{b: 4096, {sizes}}}", "batch: [b]",
        "inputs: {y0: [b, h0]}", f"parameters: {{{weights}}}", "operators:",
        *(f"  - {line}" for line in lines), f"outputs: [{end}]",
    ))  # fmt: skip
    path = folder / "chain.yaml"
    path.write_text(text + "\n")
    return load_program(path)


def branches(folder: Path, left: list[int], right: list[int]) -> Program:
    """Two chains of products of the same examples, the left one written first, whose results are added. The widths
    begin and end alike.
    """
    lines, weights, sizes = list[str](), list[str](), {"h": left[0], "e": left[-1]}
    for side, widths in (("l", left), ("r", right)):
        dims = ["h", *(f"{side}{n}" for n in range(1, len(widths) - 1)), "e"]
        sizes |= dict(zip(dims, widths, strict=True))
        names = ["x", *(f"{side}y{n}" for n in range(1, len(widths)))]
        for n in range(len(widths) - 1):
            weights.append(f"{side}w{n}: [{dims[n]}, {dims[n + 1]}]")
            lines.append(f"{names[n + 1]}[b,{dims[n + 1]}] = {names[n]}[b,{dims[n]}] * {side}w{n}")
    lines.append(f"z[b,e] = add(ly{len(left) - 1}[b,e], ry{len(right) - 1}[b,e])")
    text = "\n".join((
        "schema: symconfig.program/1", "name: branches",
        f"dims: {{b: 4096, {', '.join(f'{dim}: {size}' for dim, size in sizes.items())}}}", "batch: [b]",
        "inputs: {x: [b, h]}", f"parameters: {{{', '.join(weights)}}}", "operators:",
        *(f"  - {line}" for line in lines), "outputs: [z]",
    ))  # fmt: skip
    path = folder / "branches.yaml"
    path.write_text(text + "\n")
    return load_program(path)


def ask(gpus: int, turns: int, **options: object) -> Ask:
    return Ask(of_cluster(CLUSTER, gpus), CLUSTER, 1e15, solver=Solver.ADAPTIVE, turns=(turns,), **options)  # type: ignore[arg-type]
