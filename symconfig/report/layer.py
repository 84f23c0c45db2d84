"""What one layer does on one GPU with one microbatch, as tables: operators, collectives, what the backward needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from symconfig.format import mib, milliseconds
from symconfig.report.grid import Block, Grid, present

if TYPE_CHECKING:
    from symconfig.solve.explain import CollectiveLine, Explanation, OperatorLine

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
    rows: dict[tuple[str, str, str, str], list[CollectiveLine]] = {}
    for line in lines:
        rows.setdefault((line.tensor, line.axes, line.size, mib(line.bytes)), []).append(line)
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
    phases: dict[str, list[str]] = {}
    for line in lines:
        phases.setdefault(line.phase, []).append(line.kind)
    return "; ".join(f"{phase} {', '.join(kinds)}" for phase, kinds in phases.items())


def _joined(rows: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the rows with one for all that differ in their name only."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, *cells in rows:
        names.setdefault(tuple(cells), []).append(name)
    return tuple((", ".join(mine), *cells) for cells, mine in names.items())
