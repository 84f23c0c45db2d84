"""Small graphs to be cut into stages: a chain of products, one with a wide middle, one with a skip, one with a tie."""

from __future__ import annotations

from pathlib import Path

from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import of_cluster
from symconfig.graph.program.program import Program
from symconfig.graph.program.read import load_program
from symconfig.solve.partition.run import Ask, Solver

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
