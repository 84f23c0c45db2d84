"""A table as data, and how it fits a width: plain text (always the same bytes), or painted by rich on a terminal."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TextIO

from symconfig.format import clean

LEAST_WIDTH = 80  # narrower terminals break lines themselves
_LONGEST_WORD = 40  # letters that are kept together in a column of words
_GAP = "  "


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


def page_width(stream: TextIO) -> int | None:
    """Return the letters of a line: what COLUMNS says, or the terminal; None: as many as there are, where neither
    says it, so that a program that reads the output finds whole lines."""
    if not (stream.isatty() or os.environ.get("COLUMNS", "").isdecimal()):
        return None
    return max(LEAST_WIDTH, shutil.get_terminal_size().columns)


def to_text(grid: Grid, width: int | None = None) -> str:
    """Columns two blanks apart, a rule below the headers, no trailing blanks; no line longer than `width`."""
    return "\n".join(text for text, _ in _laid(grid, width))


def wrapped(text: str, width: int | None) -> str:
    """Break lines that are longer than `width` between words; what follows is indented as its line is."""
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _broken(line, width))


def _broken(line: str, width: int) -> list[str]:
    """One line as several; a command or its options stay one, to be copied."""
    if len(line) <= width or line.lstrip().startswith(("--", "symconfig ")):
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _laid(grid: Grid, width: int | None) -> Iterator[Span]:
    """Yield the lines of a table, each with its style."""
    if grid.title:
        yield from ((line, "bold") for line in wrapped(clean(grid.title), width).split("\n"))
    headers = tuple(clean(header) for header in grid.headers)
    rows = tuple(tuple(clean(cell) for cell in row) for row in grid.rows)
    grid = replace(grid, headers=headers, rows=rows)
    if width is None or _total(_natural(grid)) <= width:
        yield from _lines(grid, _natural(grid))
    else:
        yield from _narrow(grid, width)


def _narrow(grid: Grid, width: int) -> Iterator[Span]:
    """Yield a table with its words wrapped; where its numbers alone are too wide, with columns one below another."""
    natural = _natural(grid)
    least = [
        min(
            natural[index],
            max(_least_words(header), *(_least_words(cell) if index in grid.left else len(cell) for cell in cells), 0),
            width,
        )
        for index, (header, *cells) in enumerate(_columns(grid))
    ]
    if _total(least) <= width:
        yield from _lines(grid, _shared(natural, least, width))
        return
    bands = _bands(least, width)
    for band in bands[:-1]:
        yield from _narrow(_only(grid, band), width)
        yield "", ""
    yield from _narrow(_only(grid, bands[-1]), width)


def _lines(grid: Grid, widths: Sequence[int]) -> Iterator[Span]:
    """Yield headers, a rule and the rows."""
    if any(grid.headers):
        yield from ((line, "bold") for line in _row(grid, grid.headers, widths))
        yield _GAP.join("-" * width for width in widths).rstrip(), "bold"
    for number, row in enumerate(grid.rows):
        style = "bold green" if number == grid.marked else ""
        yield from ((line, style) for line in _row(grid, row, widths))


def _row(grid: Grid, row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Yield one line, or several where words are wrapped."""
    cells = [_fitted(cell, width) for cell, width in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        padded = (
            text.ljust(width) if index in grid.left else text.rjust(width)
            for index, (text, width) in enumerate(zip(parts, widths, strict=True))
        )
        yield _GAP.join(padded).rstrip()


def _fitted(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    return textwrap.wrap(cell, width, break_on_hyphens=False) or [""]


def _shared(natural: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Return widths of columns: what is left beyond the least goes where most is wanted, evenly."""
    widths = list(least)
    for _ in range(width - _total(least)):
        wanting = [index for index, number in enumerate(widths) if number < natural[index]]
        if wanting:
            widths[min(wanting, key=lambda index: widths[index])] += 1
    return widths


def _bands(least: Sequence[int], width: int) -> list[list[int]]:
    """Return columns that fit beside each other, the first of all in front of each."""
    bands = [[0]]
    for index in range(1, len(least)):
        if len(bands[-1]) > 1 and _total([least[one] for one in (*bands[-1], index)]) > width:
            bands.append([0])
        bands[-1].append(index)
    return bands


def _only(grid: Grid, kept: Sequence[int]) -> Grid:
    """Return the table with these columns alone."""
    return replace(
        grid,
        headers=tuple(grid.headers[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in grid.rows),
        left=tuple(place for place, index in enumerate(kept) if index in grid.left),
    )


def _columns(grid: Grid) -> list[tuple[str, ...]]:
    return [(header, *(row[index] for row in grid.rows)) for index, header in enumerate(grid.headers)]


def _natural(grid: Grid) -> list[int]:
    return [max(map(len, column)) for column in _columns(grid)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _least_words(text: str) -> int:
    """Return the width at which a text can be wrapped without its words being cut."""
    return max((min(len(word), _LONGEST_WORD) for word in text.split()), default=0)


def plain(blocks: Sequence[Block], width: int | None = None) -> str:
    """All blocks as text, an empty line between them and one newline at the end."""
    return "\n\n".join("\n".join(text for text, _ in _spans(block, width)) for block in blocks) + "\n"


def _spans(block: Block, width: int | None) -> Iterator[Span]:
    """Yield the lines of a block, each with its style."""
    if isinstance(block, Grid):
        yield from _laid(block, width)
    else:
        text = clean(str(block))
        yield from ((line, "") for line in (wrapped(text, width) if isinstance(block, str) else text).split("\n"))


def show(blocks: Sequence[Block], stream: TextIO) -> None:
    """Write the blocks, as wide as the page: painted by rich where `stream` is a terminal, else as plain text."""
    width = page_width(stream)
    if not stream.isatty():
        stream.write(plain(blocks, width))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, width=width)
    for index, block in enumerate(blocks):
        if index:
            console.print()
        if isinstance(block, Painted):
            painted = [[(clean(text), style) for text, style in line] for line in block.lines]
        else:
            painted = [[span] for span in _spans(block, width)]
        for line in painted:
            console.print(Text.assemble(*line), no_wrap=True, soft_wrap=True)
