"""When a pipeline's step ends, pass by pass: Megatron's 1F1B, plain and interleaved, without data parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tests.oracle.plan import Plan, stages
from tests.oracle.step import messages

Pass = tuple[str, int, int]  # "f" or "b", the model's chunk, the microbatch


@dataclass(frozen=True)
class Chunk:
    """Seconds of a microbatch forward and backward."""

    forward: float
    backward: float


def chunks(what: Plan) -> list[Chunk]:
    """In model order: equal numbers of layers, the look-up in the first one, the head in the last one."""
    run = what.run
    looks_up, body, ends = (what.passes(block, run.modules) for block in range(3))
    result = []
    for index in range(run.pp * run.vpp):
        blocks = [body] * what.each + [looks_up] * (index == 0) + [ends] * (index == run.pp * run.vpp - 1)
        result.append(
            Chunk(sum(b.forward + b.forward_comm for b in blocks), sum(b.backward + b.backward_comm for b in blocks))
        )
    return result


def order(pp: int, vpp: int, m: int, stage: int) -> list[Pass]:
    """A stage's passes: as many forwards ahead as later stages need to have work, then one of each in turn.

    Interleaved, groups of pp microbatches go through one chunk after the other; backward from the last chunk.
    """
    ahead: list[Pass] = []
    back: list[Pass] = []
    for first in range(0, m, pp):
        group = range(first, min(first + pp, m))
        for chunk in range(vpp):
            ahead += [("f", stage + chunk * pp, i) for i in group]
        for chunk in reversed(range(vpp)):
            back += [("b", stage + chunk * pp, i) for i in group]
    warm = pp - stage - 1 if vpp == 1 else 2 * (pp - stage - 1) + (vpp - 1) * pp
    warm = min(warm, len(ahead))
    turns = [one for pair in zip(ahead[warm:], back, strict=False) for one in pair]
    return ahead[:warm] + turns + back[len(ahead) - warm :]


def end(what: Plan) -> float:
    """Seconds from the first forward to the last backward."""
    run, each = what.run, chunks(what)
    last = run.pp * run.vpp - 1
    busy, lag = messages(what, stages(what))
    before: dict[Pass, Pass | None] = {}
    for stage in range(run.pp):
        mine = order(run.pp, run.vpp, run.microbatches, stage)
        before |= dict(zip(mine, [None, *mine[:-1]], strict=True))

    @cache
    def done(one: Pass) -> float:
        """A pass begins when the stage's one before it has ended and what it needs has come; receiving takes time."""
        kind, chunk, i = one
        free = done(before[one]) if before[one] else 0.0  # type: ignore[arg-type]
        if kind == "f":
            needed: Pass | None = ("f", chunk - 1, i) if chunk else None
        else:
            needed = ("b", chunk + 1, i) if chunk < last else ("f", chunk, i)
        takes = each[chunk].forward if kind == "f" else each[chunk].backward
        if needed is None:
            return free + takes
        other = needed[1] % run.pp != chunk % run.pp
        return max(free, done(needed) + lag * other) + busy * other + takes

    return max(done(one) for one in before)
