"""When no partition fits: what is kept at least, most of what it is, and a larger mesh on which one does fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from symconfig.cost.partition.costs import kept_bytes
from symconfig.descriptor.mesh import Mesh
from symconfig.errors import InfeasibleError, InputError
from symconfig.format import either, general
from symconfig.solve.partition.run import Ask, Programs, Solver, cases, costs_of, partition
from symconfig.units import GIB

DOUBLINGS = 12
Grown = Callable[[int], Mesh | None]  # the mesh of so many times as many GPUs, or None where there is none


def infeasible(programs: Programs, ask: Ask, grown: Grown) -> InfeasibleError:
    """Return (not raise) the error for a program that has no partition which fits; all searches use the adaptive
    solver.

    With pins, if none is found in unlimited memory either: `excluded`. Else the error states the least bytes that a GPU
    must keep (an even share, of the microbatches and Keep with the least), the weight or tensor with most of it, and as
    hint the first larger mesh that fits (see `nearest`). grown: returns the mesh of n times as many GPUs, or None.
    """
    ask = replace(ask, solver=Solver.ADAPTIVE)
    if ask.pins and partition(programs, replace(ask, memory_limit=np.inf)) is None:
        return excluded(ask)
    each = [kept_bytes(costs_of(case, ask, ())) for case in cases(programs, ask)]
    held: dict[str, float] = defaultdict(float)
    for name, size in min(each, key=lambda some: sum(size for _, size in some)):
        held[general(name)] += size / ask.mesh.gpus
    name, size = max(held.items(), key=lambda item: (item[1], item[0]))
    what = (
        f"no partition was found that fits in memory: with {_microbatches(ask.turns)} at least "
        f"{_size(sum(held.values()))} are kept on a GPU, of {_size(ask.memory_limit)}, beside what an operator reads "
        f"and writes while it runs; most of it is {name} ({_size(size)})"
    )
    return InfeasibleError(what, hint=nearest(grown, DOUBLINGS, lambda mesh: _fits(programs, replace(ask, mesh=mesh))))


def _fits(programs: Programs, ask: Ask) -> bool:
    return partition(programs, ask) is not None


def excluded(ask: Ask) -> InfeasibleError:
    """Return the error for pins that exclude every partition."""
    what = "no partition was found that keeps to " + " and ".join(pin.text for pin in ask.pins)
    return InfeasibleError(what, field="pin", need="pins that can hold together")


def nearest(grown: Grown, doublings: int, fits: Callable[[Mesh], bool]) -> str:
    """Return, as text, the GPUs of the first mesh of 2, 4, … 2^doublings times as many GPUs that `fits`; else general
    advice.

    Sizes for which `grown` returns None or raises InputError are skipped.
    """
    for power in range(1, doublings + 1):
        try:
            mesh = grown(2**power)
        except InputError:
            continue
        if mesh is not None and fits(mesh):
            return f"{mesh.gpus:,} GPUs"
    return "a smaller batch or sequence, or more memory: no larger mesh was found to hold it"


def _microbatches(turns: Sequence[int]) -> str:
    return f"{either(turns)} microbatch" + ("es" if turns[-1] > 1 else "")


def _size(amount: float) -> str:
    if amount < 0.1 * GIB:
        return f"{amount * 1024 / GIB:,.2f} MiB"
    return f"{amount / GIB:,.2f} GiB" if amount < 100 * GIB else f"{amount / GIB:,.0f} GiB"
