"""The strategy tuple of every tensor of a plan, as tables: one for each kind of block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from symconfig.report.grid import Block, Grid

if TYPE_CHECKING:
    from symconfig.solve.strategies import Exchanged, Strategies, Strategy, StrategyLine


def tables(found: Strategies) -> list[Block]:
    """Tensors that lie and travel alike share a row."""
    if not found.axes:
        return []
    over = ", ".join(f"{axis.name} {axis.ranks} over {axis.level}" for axis in found.axes)
    first = f"How every tensor lies: into how many parts its dims are cut, and by which axes ({over})"
    return [first, *(_table(block.kind, block.times, block.lines) for block in found.blocks)]


def _table(kind: str, times: int, lines: Sequence[StrategyLine]) -> Grid:
    rows: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        rows.setdefault((_dims(line), _tuple(line.made), _used(line), _collectives(line)), []).append(line.tensor)
    return Grid(
        ("tensor", "dims", "made as", "used as", "collectives"),
        tuple((", ".join(names), *cells) for cells, names in rows.items()),
        left=(0, 1, 2, 3, 4),
        title=f"Block {kind}" + (f" (x {times})" if times > 1 else ""),
    )


def _dims(line: StrategyLine) -> str:
    return ", ".join(line.dims)


def _tuple(strategy: Strategy) -> str:
    """(dp 4, cp.tp 16, 1) + over tp, flat over dp."""
    cells = (
        f"{'.'.join(axes)} {parts}" if axes else "1" for parts, axes in zip(strategy.parts, strategy.axes, strict=True)
    )
    partial = f" + over {'.'.join(strategy.partial)}" if strategy.partial else ""
    flat = f" flat over {'.'.join(strategy.flat)}" if strategy.flat else ""
    return f"({', '.join(cells)}){partial}{flat}"


def _used(line: StrategyLine) -> str:
    return "; ".join(_tuple(strategy) for strategy, _ in line.used)


def _collectives(line: StrategyLine) -> str:
    phases: dict[str, list[Exchanged]] = {}
    for one in line.collectives:
        phases.setdefault(one.phase, []).append(one)
    return "; ".join(
        f"{phase} " + ", ".join(f"{one.kind} {'.'.join(one.axes)}" for one in mine) for phase, mine in phases.items()
    )
