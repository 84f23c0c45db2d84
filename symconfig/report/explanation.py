"""`symconfig explain`: why a plan is the first, where its time and memory go, and with --all how both follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from symconfig.format import clean, grouped, mib, milliseconds, picked
from symconfig.plans.plan import Plan
from symconfig.plans.sentences import caveats
from symconfig.report.grid import Block, Grid, present
from symconfig.report.rl import whole_step
from symconfig.report.table import footer, headline, loss, parts, ranking, ranking_reasons, stages

if TYPE_CHECKING:
    from symconfig.solve.explain import CollectiveLine, Explanation, Strategies, Strategy, StrategyLine
    from symconfig.solve.symbolic import Known, Symbolic


def blocks(plan: Plan) -> list[Block]:
    """Return caveats, why the plan is the first of its ranking (the loss of others only if there are any), where its
    time and memory go, and how sure that is.
    """
    lost = tuple((str(number), *loss(plan.best, other)) for number, other in enumerate(plan.alternatives, 2))
    return present(
        headline(plan),
        *caveats(plan),
        *whole_step(plan),
        ranking(plan),
        ranking_reasons(plan),
        Grid(("#", "slower by", "because of"), lost, left=(2,), title="What the alternatives lose"),
        parts(plan),
        stages(plan),
        footer(plan),
    )


def details(explanation: Explanation, symbolic: Symbolic) -> list[Block]:
    """Return the blocks that `explain --all` adds: of one layer operators, collectives and kept tensors (`tables`), the
    sharding of all tensors, and the formulas of step and memory.
    """
    return present(*tables(explanation), *strategy_tables(explanation.strategies), *formulas(symbolic))


def to_dict(plan: Plan, explanation: Explanation, symbolic: Symbolic) -> dict[str, Any]:
    """Return the explanation as JSON: the best candidate, what limits it, one layer's operators, collectives and
    tensors, the sharding of all tensors, the first alternative with its loss (`runner_up`; None without one), and
    `symbolic`: formulas and symbols with their values.
    """
    runner_up = None
    if plan.alternatives:
        slower, because = loss(plan.best, plan.alternatives[0])
        runner_up = {"candidate": plan.alternatives[0].to_dict(), "slower_by": slower, "because": because}
    layer = asdict(explanation)
    lying = layer.pop("strategies")
    return {
        "schema": "symconfig.explain/2",
        "best": plan.best.to_dict(),
        "binding": plan.binding,
        "usable_bytes": plan.usable_bytes,
        "layer": layer,
        "strategies": lying,
        "runner_up": runner_up,
        "symbolic": {
            "formulas": [
                {"name": one.name, "formula": symbolic.formulas.text(one.line), "value": one.value}
                for one in symbolic.formulas
            ],
            "symbols": [
                {**picked(one, "name", "value", "unit"), "from": str(one.source), "is": one.meaning}
                | {"elasticity": one.elasticity}
                for one in symbolic.known
            ],
            "note": NOTE,
        },
    }


_PHASES = ("forward", "backward", "weight-gradient")
_MOVERS = 12  # symbols with the largest elasticity that are shown
NOTE = (
    "The search evaluates these same formulas. A choice in them (the slowest stage) is a max or min, or that of this "
    "plan. simulated_pipeline, simulated_exchange: seconds of the event simulation over those of the formulas."
)


def tables(explanation: Explanation) -> list[Block]:
    """Return the tables of one layer and microbatch: operators (sizes, ms by phase), collectives (times over all
    phases), and tensors that the backward pass needs (MiB, fate); empty ones are left out.
    """
    kind = explanation.kind
    named = groupby(explanation.operators, lambda line: line.name)
    title = f"Operators of one {kind} layer, one microbatch: what each works on in the forward pass, and ms"
    taken = {(line.name, line.phase): milliseconds(line.seconds) for line in explanation.operators}
    works = []  # an operator's sizes in the forward pass, and in other phases if they are no permutation of these
    for name, (first, *others) in named:
        same = sorted(first.numbers.split(" x "))
        more = [f"{one.phase} {one.numbers}" for one in others if sorted(one.numbers.split(" x ")) != same]
        works.append((name, ", ".join([first.numbers, *more]), *(taken.get((name, phase), "") for phase in _PHASES)))
    tensors = _joined((line.name, line.size, mib(line.bytes), line.fate) for line in explanation.tensors)
    needed = "Its tensors that the backward pass needs"
    return present(
        Grid(("operator", "work", *_PHASES), tuple(works), left=(0, 1), title=title),
        _collectives(explanation.collectives),
        Grid(("tensor", "size", "MiB each", "fate"), tensors, left=(0, 1, 3), title=needed),
    )


def _collectives(lines: Sequence[CollectiveLine]) -> Grid:
    """Return the table of collectives: tensor, axes, kinds by phase, size, MiB, and milliseconds in all and exposed.
    Those with equal tensor, axes and size share a row, with the times of all phases summed.
    """
    rows = grouped(((line.tensor, line.axes, line.size, mib(line.bytes)), line) for line in lines)
    cells = (
        {
            "tensor": tensor,
            "over": axes,
            "collectives": _by_phase((line.phase, line.kind) for line in mine),
            "size": size,
            "MiB each": moved,
            "ms": milliseconds(sum(line.seconds for line in mine)),
            "not hidden": milliseconds(sum(line.exposed_s for line in mine)),
        }
        for (tensor, axes, size, moved), mine in rows.items()
    )
    words = ("tensor", "over", "collectives", "size")
    return Grid.of(cells, "Its collectives, derived from the layouts", words=words)


def _by_phase(collectives: Iterable[tuple[str, str]]) -> str:
    """Return (phase, collective) pairs as text: `forward all-gather; backward reduce-scatter, all-gather`."""
    return "; ".join(f"{phase} {', '.join(kinds)}" for phase, kinds in grouped(collectives).items())


def _joined(rows: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the rows, those that differ only in their name joined into one."""
    names = grouped((tuple(cells), name) for name, *cells in rows)
    return tuple((", ".join(mine), *cells) for cells, mine in names.items())


def strategy_tables(strategies: Strategies) -> list[Block]:
    """Return a line with the mesh axes, and a table for each kind of block: each tensor, its sharding as produced, and
    others in which it is read, with the collectives for them; tensors alike in these share a row. [] without mesh axes.
    """
    if not strategies.axes:
        return []
    over = ", ".join(f"{axis.name} {axis.ranks} over {axis.level}" for axis in strategies.axes)
    first = f"The sharding of each tensor: its dims, the axes that split each, and the number of parts ({over})"
    shown: list[Block] = [first]
    for block in strategies.blocks:
        rows = _joined((line.tensor, _made(line), _used(line)) for line in block.lines)
        title = f"Block {block.kind}" + (f" (x {block.times})" if block.times > 1 else "")
        shown.append(Grid(("tensor", "made as", "used otherwise, and exchanged"), rows, left=(0, 1, 2), title=title))
    return shown


def _made(line: StrategyLine) -> str:
    """Return a tensor's sharding as produced: `batch dp 4, sequence cp.tp 16, hidden_size; a sum over tp; flat over
    dp`.
    """
    cells = zip(line.dims, line.made.axes, line.made.parts, strict=True)
    dims = ", ".join(f"{dim} {'.'.join(axes)} {parts}" if axes else dim for dim, axes, parts in cells)
    return "; ".join(part for part in (dims, *_others(line.made)) if part)


def _used(line: StrategyLine) -> str:
    """Return the shardings that operators read instead of the produced one, and the collectives for them: `sequence
    whole or sequence tp 2: forward all-gather tp`.
    """
    read = " or ".join(dict.fromkeys(_change(line, strategy) for strategy, _ in line.used))
    collectives = _by_phase((one.phase, f"{one.kind} {'.'.join(one.axes)}") for one in line.collectives)
    return ": ".join(filter(None, (read, collectives)))


def _change(line: StrategyLine, strategy: Strategy) -> str:
    """Return the differences of one strategy from the produced one, as text: dims with another split ("whole" if none),
    "summed" if partial sums are completed, and its own partial sums and flat shards.
    """
    cells = zip(line.dims, strategy.axes, strategy.parts, line.made.axes, line.made.parts, strict=True)
    dims = ", ".join(
        f"{dim} {'.'.join(axes)} {parts}" if axes else f"{dim} whole"
        for dim, axes, parts, before, made in cells
        if (axes, parts) != (before, made)
    )
    summed = "summed" if line.made.partial and not strategy.partial else ""
    return ", ".join(part for part in (dims, summed, *_others(strategy)) if part)


def _others(strategy: Strategy) -> list[str]:
    """Return texts for the axes over which the tensor is partial, and those that shard it flat."""
    partial = [f"a sum over {'.'.join(strategy.partial)}"] if strategy.partial else []
    return [*partial, *([f"flat over {'.'.join(strategy.flat)}"] if strategy.flat else [])]


def formulas(symbolic: Symbolic) -> list[Block]:
    """Return a text with the formulas of step and memory and their values, a note, and two tables of symbols: those by
    which the step changes most, and all of them by source and name.
    """
    lines = (
        line
        for one in symbolic.formulas
        for line in (f"  {one.name} = {spaced(symbolic.formulas.text(one.line))}", f"    = {one.value:.6g}")
    )
    every = sorted(symbolic.known, key=lambda one: (one.source, one.name))
    return [
        "\n".join(("The step and the memory as formulas", *lines)),
        NOTE,
        _symbols("What moves the step", symbolic.movers[:_MOVERS]),
        _symbols("Symbols", every),
    ]


def spaced(formula: str) -> str:
    """Return a formula with blanks around its operators so that lines can be broken there."""
    return formula.replace("**", "^").replace("*", " * ").replace("/", " / ").replace("^", "**")


def _symbols(title: str, every: Sequence[Known]) -> Grid:
    """Return the table of symbols: value, unit, source, elasticity of the step time, and meaning."""
    rows = (
        {
            "symbol": one.name,
            "now": f"{one.value:.6g}",
            "unit": one.unit,
            "from": str(one.source),
            "step for 1 % more": f"{one.elasticity:+.3f} %",
            "is": clean(one.meaning),
        }
        for one in every
    )
    return Grid.of(rows, title, words=("symbol", "unit", "from", "is"), fixed=("unit", "from"))
