"""A table as data, and its two looks: plain text (always the same bytes) and rich on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from symconfig.format import clean


@dataclass(frozen=True, slots=True)
class Grid:
    """Headers and rows of strings. `left`: indices of the columns that hold words; `marked`: the row to stress."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = ()
    title: str = ""
    marked: int | None = None


Span = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Painted:
    """Lines of spans: a text, and the style that rich gives it on a terminal."""

    lines: tuple[tuple[Span, ...], ...]

    def __str__(self) -> str:
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self.lines)


Block = Grid | Painted | str


def to_text(grid: Grid) -> str:
    """Columns two blanks apart, a rule below the headers, no trailing blanks."""
    cells = [tuple(clean(cell) for cell in row) for row in (grid.headers, *grid.rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(grid.headers))]

    def line(row: Sequence[str]) -> str:
        parts = (
            text.ljust(width) if index in grid.left else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(parts).rstrip()

    lines = [clean(grid.title)] if grid.title else []
    if any(grid.headers):
        lines += [line(cells[0]), "  ".join("-" * width for width in widths).rstrip()]
    return "\n".join(lines + [line(row) for row in cells[1:]])


def plain(blocks: Sequence[Block]) -> str:
    """All blocks as text, an empty line between them and one newline at the end."""
    return "\n\n".join(to_text(block) if isinstance(block, Grid) else clean(str(block)) for block in blocks) + "\n"


def show(blocks: Sequence[Block], stream: TextIO) -> None:
    """Write the blocks: with rich where `stream` is a terminal, else as plain text."""
    if not stream.isatty():
        stream.write(plain(blocks))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    # A terminal that is too narrow for the numbers breaks lines itself; columns of two letters help nobody.
    console.width = max([console.width, *(_least_width(block) for block in blocks if isinstance(block, Grid))])
    for index, block in enumerate(blocks):
        if index:
            console.print()
        if isinstance(block, str):
            console.print(Text(clean(block)))
            continue
        if isinstance(block, Painted):
            for painted in block.lines:
                console.print(Text.assemble(*((clean(text), style) for text, style in painted)), no_wrap=True)
            continue
        table = Table(
            title=Text(clean(block.title), style="bold") if block.title else None,
            title_justify="left",
            box=None,
            pad_edge=False,
            show_header=any(block.headers),
            header_style="bold",
        )
        for column, header in enumerate(block.headers):
            words = column in block.left
            table.add_column(Text(clean(header)), justify="left" if words else "right", no_wrap=not words)
        for number, row in enumerate(block.rows):
            table.add_row(*(Text(clean(cell)) for cell in row), style="bold green" if number == block.marked else None)
        console.print(table)


def _least_width(grid: Grid) -> int:
    """What the columns of numbers need, and twelve letters for each column of words."""
    widths = [max(len(row[column]) for row in (grid.headers, *grid.rows)) for column in range(len(grid.headers))]
    needs = (min(width, 12) if column in grid.left else width for column, width in enumerate(widths))
    return sum(needs) + 2 * len(widths)
