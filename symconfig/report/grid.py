"""A table as data, and how it fits a width: plain text (always the same bytes), or painted by rich on a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from typing import TextIO

from symconfig.format import clean
from symconfig.report.lines import LONGEST_WORD, name_parts, pieces, wrap

LEAST_WIDTH = 80  # narrower terminals break lines themselves
_GAPS = ("  ", " ")  # between columns: the second where a table would not fit otherwise
_SPLIT = 1.3  # lines that a table with its names broken counts as: whole names are worth some
_ENOUGH = 3  # rows from which on a column of equal cells is said once


@dataclass(frozen=True, slots=True)
class Grid:
    """Headers and rows of strings. `left`: indices of the columns that hold words; `marked`: the row to stress;
    `fixed`: indices of the columns that stay, also where all their cells are equal."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = ()
    title: str = ""
    marked: int | None = None
    fixed: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        rows: Iterable[Mapping[str, str]],
        title: str = "",
        *,
        words: Sequence[str] = (),
        fixed: Sequence[str] = (),
        marked: int | None = None,
    ) -> Grid:
        """Make a table of rows by header. words, fixed: headers of columns that hold words, and of those that stay."""
        every = list(rows)
        heads = tuple(every[0]) if every else ()
        return cls(
            heads,
            tuple(tuple(row.values()) for row in every),
            tuple(place for place, head in enumerate(heads) if head in words),
            title,
            marked,
            tuple(place for place, head in enumerate(heads) if head in fixed),
        )

    @classmethod
    def pairs(cls, rows: Iterable[tuple[str, str]], title: str = "") -> Grid:
        """Make a table of names and what each of them is."""
        return cls(("", ""), tuple(rows), (0, 1), title)


Span = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Painted:
    """Lines of spans: a text, and the style that rich gives it on a terminal."""

    lines: tuple[tuple[Span, ...], ...]

    def __str__(self) -> str:
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self.lines)


Block = Grid | Painted | str


def present(*blocks: Block) -> list[Block]:
    """Return the blocks that say something: no empty text, and no table without a row."""
    return [block for block in blocks if (block.rows if isinstance(block, Grid) else block)]


def titled(title: str, lines: Iterable[object], sign: str = "  ") -> str:
    """Write lines below a title, each behind a sign; nothing where there is no line."""
    below = [f"{sign}{line}" for line in lines]
    return "\n".join((title, *below)) if below else ""


def page_width(stream: TextIO) -> int | None:
    """Return the letters of a line: what COLUMNS says, or the terminal. None: as many as there are, where neither says
    it, so that a program that reads the output finds whole lines."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return max(LEAST_WIDTH, int(columns))
    return max(LEAST_WIDTH, _columns_of(stream)) if stream.isatty() else None


def _columns_of(terminal: TextIO) -> int:
    try:
        return os.get_terminal_size(terminal.fileno()).columns
    except OSError:  # it does not say
        return LEAST_WIDTH


def to_text(grid: Grid, width: int | None = None) -> str:
    """Lay columns two blanks apart, a rule below the headers, no trailing blanks; no line longer than `width`."""
    return "\n".join(text for text, _ in _laid(grid, width))


def markdown_rows(grid: Grid) -> list[str]:
    """Write a table as lines of Markdown, without its title."""
    rule = "|".join("---" if column in grid.left else "---:" for column in range(len(grid.headers)))
    heads, *rows = ("| " + " | ".join(row) + " |" for row in (grid.headers, *grid.rows))
    return [heads, f"|{rule}|", *rows]


def wrapped(text: str, width: int | None) -> str:
    """Break lines that are longer than `width` between words; what follows is indented as its line is."""
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in wrap(line, width))


def telling(grid: Grid) -> Grid:
    """Return the table without columns that are empty; what is equal in all of many rows is said below the title."""
    columns = dict(enumerate(_columns(grid)))
    empty = {index for index, (header, *cells) in columns.items() if header and cells and not any(cells)}
    equal = {
        index
        for index, (header, *cells) in columns.items()
        if header and index and len(cells) >= _ENOUGH and len(set(cells)) == 1 and index not in grid.fixed
    } - empty
    if not empty | equal or len(empty | equal) >= len(columns):
        return grid
    kept = _only(grid, [index for index in columns if index not in empty | equal])
    if not equal:
        return kept
    alike = "In all rows: " + "; ".join(f"{columns[index][0]} {columns[index][1]}" for index in sorted(equal)) + "."
    return replace(kept, title="\n".join(part for part in (grid.title, alike) if part))


def _laid(grid: Grid, width: int | None) -> Iterator[Span]:
    """Yield the lines of a table, each with its style."""
    grid = telling(grid)
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
    fitting: list[tuple[float, list[Span]]] = []
    for split, gap in product((False, True), _GAPS):
        least = [
            min(natural[index], _least_of(column, split=split, words=index in grid.left), width)
            for index, column in enumerate(_columns(grid))
        ]
        if _total(least, gap) <= width:
            lines = list(_lines(grid, _shared(natural, least, width, gap), gap))
            fitting.append((len(lines) * (_SPLIT if split else 1.0), lines))
    if fitting:
        yield from min(fitting, key=lambda each: each[0])[1]
        return
    bands = _bands(least, width)
    if len(bands) == 1:  # two columns that do not fit beside each other: the wider one is cut
        while _total(least, _GAPS[-1]) > width:
            least[least.index(max(least))] -= 1
        yield from _lines(grid, least, _GAPS[-1])
        return
    for band in bands[:-1]:
        yield from _narrow(_only(grid, band), width)
        yield "", ""
    yield from _narrow(_only(grid, bands[-1]), width)


def _lines(grid: Grid, widths: Sequence[int], gap: str = _GAPS[0]) -> Iterator[Span]:
    """Yield headers, a rule and the rows."""
    if any(grid.headers):
        yield from ((line, "bold") for line in _row(grid, grid.headers, widths, gap, heads=True))
        yield gap.join("-" * width for width in widths).rstrip(), "bold"
    for number, row in enumerate(grid.rows):
        style = "bold green" if number == grid.marked else ""
        yield from ((line, style) for line in _row(grid, row, widths, gap))


def _row(grid: Grid, row: Sequence[str], widths: Sequence[int], gap: str, *, heads: bool = False) -> Iterator[str]:
    """Yield one line, or several where words are wrapped."""
    cells = [_fitted(cell, width, heads=heads) for cell, width in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        padded = (
            text.ljust(width) if index in grid.left else text.rjust(width)
            for index, (text, width) in enumerate(zip(parts, widths, strict=True))
        )
        yield gap.join(padded).rstrip()


def _fitted(cell: str, width: int, *, heads: bool) -> list[str]:
    """Return the lines of a cell; a cell has no newline of its own."""
    if len(cell) <= width:
        return [cell]
    lines = [""]
    for word in pieces(cell, heads=heads):
        for piece in [word] if len(word.rstrip()) <= width else name_parts(word):
            if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
                lines.append("")
            lines[-1] += piece
            while len(lines[-1].rstrip()) > width:  # longer than its column, and without a seam
                lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return [line.rstrip() for line in lines]


def _shared(natural: Sequence[int], least: Sequence[int], width: int, gap: str) -> list[int]:
    """Return widths of columns: what is left beyond the least goes where cells have the most lines."""
    widths = list(least)
    for _ in range(width - _total(least, gap)):
        wanting = [index for index, number in enumerate(widths) if number < natural[index]]
        if wanting:
            widths[max(wanting, key=lambda index: natural[index] / widths[index])] += 1
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
        fixed=tuple(place for place, index in enumerate(kept) if index in grid.fixed),
    )


def _columns(grid: Grid) -> list[tuple[str, ...]]:
    return [(header, *(row[index] for row in grid.rows)) for index, header in enumerate(grid.headers)]


def _natural(grid: Grid) -> list[int]:
    return [max(map(len, column)) for column in _columns(grid)]


def _total(widths: Sequence[int], gap: str = _GAPS[0]) -> int:
    return sum(widths) + len(gap) * (len(widths) - 1)


def _least_of(column: Sequence[str], *, split: bool, words: bool) -> int:
    """Return the width at which a column can be wrapped without its words being cut; of numbers only the header can."""
    header, *cells = column
    return max(
        _least(header, split=split, heads=True),
        *((_least(cell, split=split) if words else len(cell)) for cell in cells),
        0,
    )


def _least(text: str, *, split: bool, heads: bool = False) -> int:
    words = [word.rstrip() for word in pieces(text, heads=heads)]
    if split:
        words = [part for word in words for part in name_parts(word)]
    return max((min(len(word), LONGEST_WORD) for word in words), default=0)


def plain(blocks: Sequence[Block], width: int | None = None) -> str:
    """Write all blocks as text, an empty line between them and one newline at the end."""
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
