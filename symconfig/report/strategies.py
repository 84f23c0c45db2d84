"""The strategy tuple of every tensor of a plan, as tables: one for each kind of block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from symconfig.format import several
from symconfig.report.grid import Block, Grid

if TYPE_CHECKING:
    from symconfig.solve.strategies import Exchanged, Strategies, Strategy, StrategyLine


def tables(strategies: Strategies, *, every: bool = False) -> list[Block]:
    """Return a table for each kind of block, in which tensors that lie and travel alike share a row.

    One that an earlier block has, too, is left out unless `every`.
    """
    if not strategies.axes:
        return []
    over = ", ".join(f"{axis.name} {axis.ranks} over {axis.level}" for axis in strategies.axes)
    first = (
        "How every tensor lies: behind each of its dims the axes that cut it, and into how many parts; "
        f"a dim with none is whole ({over})"
    )
    shown: list[Block] = [first]
    known: set[StrategyLine] = set()
    for block in strategies.blocks:
        new = [line for line in block.lines if every or line not in known]
        shown.append(_table(block.kind, block.times, new, len(block.lines) - len(new)))
        known |= set(block.lines)
    return shown


def _table(kind: str, times: int, lines: Sequence[StrategyLine], above: int) -> Grid:
    rows: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        rows.setdefault((_made(line), _travels(line)), []).append(line.tensor)
    title = f"Block {kind}" + (f" (x {times})" if times > 1 else "")
    return Grid(
        ("tensor", "made as", "used otherwise, and exchanged"),
        tuple((", ".join(names), *cells) for cells, names in rows.items()),
        left=(0, 1, 2),
        title=f"{title}; {several(above, 'tensor')} as in a block above (--all)" if above else title,
    )


def _travels(line: StrategyLine) -> str:
    return ": ".join(part for part in (_used(line), _collectives(line)) if part)


def _made(line: StrategyLine) -> str:
    """Return `batch dp 4, sequence cp.tp 16, hidden_size; a sum over tp; flat over dp`."""
    cells = zip(line.dims, line.made.axes, line.made.parts, strict=True)
    dims = ", ".join(f"{dim} {'.'.join(axes)} {parts}" if axes else dim for dim, axes, parts in cells)
    return "; ".join(part for part in (dims, *_others(line.made)) if part)


def _used(line: StrategyLine) -> str:
    """Return the dims that operators read otherwise than they were made: `sequence whole`, `sequence tp 2`."""
    return " or ".join(dict.fromkeys(_change(line, strategy) for strategy, _ in line.used))


def _change(line: StrategyLine, strategy: Strategy) -> str:
    cells = zip(line.dims, strategy.axes, strategy.parts, line.made.axes, line.made.parts, strict=True)
    dims = ", ".join(
        f"{dim} {'.'.join(axes)} {parts}" if axes else f"{dim} whole"
        for dim, axes, parts, before, made in cells
        if (axes, parts) != (before, made)
    )
    summed = "summed" if line.made.partial and not strategy.partial else ""
    return ", ".join(part for part in (dims, summed, *_others(strategy)) if part)


def _others(strategy: Strategy) -> list[str]:
    """Return what no dim says: over which axes only the sum is the tensor, and which cut it regardless of dims."""
    partial = [f"a sum over {'.'.join(strategy.partial)}"] if strategy.partial else []
    return [*partial, *([f"flat over {'.'.join(strategy.flat)}"] if strategy.flat else [])]


def _collectives(line: StrategyLine) -> str:
    phases: dict[str, list[Exchanged]] = {}
    for one in line.collectives:
        phases.setdefault(one.phase, []).append(one)
    return "; ".join(
        f"{phase} " + ", ".join(f"{one.kind} {'.'.join(one.axes)}" for one in mine) for phase, mine in phases.items()
    )
