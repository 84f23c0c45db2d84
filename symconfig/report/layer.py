"""What one layer does on one GPU with one microbatch, and how every tensor of a plan lies, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from symconfig.format import grouped, mib, milliseconds, several
from symconfig.report.grid import Block, Grid, present

if TYPE_CHECKING:
    from symconfig.solve.explain import CollectiveLine, Explanation, OperatorLine
    from symconfig.solve.strategies import Strategies, Strategy, StrategyLine


_PHASES = ("forward", "backward", "weight-gradient")
_TRAFFIC = "memory traffic"


def tables(explanation: Explanation) -> list[Block]:
    """Return a row for each operator, for each tensor that travels, and for tensors that wait alike."""
    kind = explanation.kind
    named = [(name, list(lines)) for name, lines in groupby(explanation.operators, lambda line: line.name)]
    title = f"Operators of one {kind} layer, one microbatch: what each works on in the forward pass, and ms"
    works = tuple((name, _work(lines), *_phases(lines)) for name, lines in named)
    shapes = _joined((name, lines[0].shape) for name, lines in named if lines[0].shape != _TRAFFIC)
    symbols = "The same shapes in symbols; the other passes turn them"
    tensors = _joined((line.name, line.size, mib(line.bytes), line.fate) for line in explanation.tensors)
    needed = "Its tensors that the backward pass needs"
    return present(
        Grid(("operator", "work", *_PHASES), works, left=(0, 1), title=title),
        Grid(("operator", "shape on a GPU"), shapes, left=(0, 1), title=symbols),
        _collectives(explanation.collectives),
        Grid(("tensor", "size", "MiB each", "fate"), tensors, left=(0, 1, 3), title=needed),
    )


def _phases(lines: Sequence[OperatorLine]) -> tuple[str, ...]:
    taken = {line.phase: milliseconds(line.seconds) for line in lines}
    return tuple(taken.get(phase, "") for phase in _PHASES)


def _work(lines: Sequence[OperatorLine]) -> str:
    """Return the forward pass's numbers, and another pass's where they are no permutation of those."""
    first, *others = lines
    same = sorted(first.numbers.split(" x "))
    more = [f"{line.phase} {line.numbers}" for line in others if sorted(line.numbers.split(" x ")) != same]
    return ", ".join([first.numbers, *more])


def _collectives(lines: Sequence[CollectiveLine]) -> Grid:
    """Return a row for a tensor, the ranks that it is exchanged over, and a size; seconds are the sum of its phases."""
    rows = grouped(((line.tensor, line.axes, line.size, mib(line.bytes)), line) for line in lines)
    cells = (
        {
            "tensor": tensor,
            "over": axes,
            "collectives": _by_phase(mine),
            "size": size,
            "MiB each": moved,
            "ms": milliseconds(sum(line.seconds for line in mine)),
            "not hidden": milliseconds(sum(line.exposed_s for line in mine)),
        }
        for (tensor, axes, size, moved), mine in rows.items()
    )
    words = ("tensor", "over", "collectives", "size")
    return Grid.of(cells, "Its collectives, derived from the layouts", words=words)


def _by_phase(lines: Sequence[CollectiveLine]) -> str:
    """Return `forward all-gather; backward reduce-scatter, all-gather`."""
    phases = grouped((line.phase, line.kind) for line in lines)
    return "; ".join(f"{phase} {', '.join(kinds)}" for phase, kinds in phases.items())


def _joined(rows: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the rows with one for all that differ in their name only."""
    names = grouped((tuple(cells), name) for name, *cells in rows)
    return tuple((", ".join(mine), *cells) for cells, mine in names.items())


def strategy_tables(strategies: Strategies, *, every: bool = False) -> list[Block]:
    """Return a table for each kind of block, in which tensors that lie and travel alike share a row. One that an
    earlier block has, too, is left out unless `every`."""
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
    travels = (": ".join(filter(None, (_used(line), _exchanged(line)))) for line in lines)
    rows = _joined((line.tensor, _made(line), way) for line, way in zip(lines, travels, strict=True))
    title = f"Block {kind}" + (f" (x {times})" if times > 1 else "")
    title += f"; {several(above, 'tensor')} as in a block above (--all)" if above else ""
    return Grid(("tensor", "made as", "used otherwise, and exchanged"), rows, left=(0, 1, 2), title=title)


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


def _exchanged(line: StrategyLine) -> str:
    phases = grouped((one.phase, f"{one.kind} {'.'.join(one.axes)}") for one in line.collectives)
    return "; ".join(f"{phase} {', '.join(kinds)}" for phase, kinds in phases.items())
