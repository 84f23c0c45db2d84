"""A table as data, and how tables, sentences and Markdown fit a width: plain text, always the same bytes."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TextIO

from symconfig.format import clean

LEAST_WIDTH = 80  # narrower terminals break lines themselves
_GAPS = ("  ", " ")  # between columns: the second where a table would not fit otherwise
_ENOUGH = 3  # rows from which on a column of equal cells is said once
_BOLD, _CHOSEN, _PLAIN = "1", "1;32", ""  # codes of a terminal (ECMA-48): bold, bold green
LONGEST_WORD = 40  # letters that are kept together in a table; a name's parts, where it is longer than the next
_LONG_NAME = 20
_ITEM = "  "  # as wide as the sign of an item
_PERCENT = "\1%"  # a sign that stays with its number
_SEAMS = r"(?<=\s)(?=\S)|(?<=[\w)]\+)(?=\w)"  # behind blanks, and behind the + of core_attn+mlp
_FENCE = "```"
_GLUE = "\0"  # stands for a blank at which no line is broken
_LONGEST_CODE = 60  # letters of `code` that are kept on one line, to be copied
_CODE = re.compile(rf"`[^`]{{1,{_LONGEST_CODE}}}`")
_MEANS = re.compile(r" (?=(?:[-+*>|]|#+|\d+[.)])(?: |$))")  # before what would begin a list, a heading, a quotation


Cells = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of strings. left: indices of left-aligned columns; marked: index of a highlighted row; fixed: indices
    of columns kept even if all their cells are equal.
    """

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
        """Return the table of rows given as {header: cell}; the headers are the first row's (none without rows), cells
        go by position. words: headers of left-aligned columns; fixed: of columns kept even if all cells are equal;
        marked: index of a highlighted row.
        """
        every = list(rows)
        heads = tuple(every[0]) if every else ()
        left, kept = (tuple(place for place, head in enumerate(heads) if head in names) for names in (words, fixed))
        return cls(heads, tuple(tuple(row.values()) for row in every), left, title, marked, kept)

    @property
    def columns(self) -> list[tuple[str, ...]]:
        """Return each column as a tuple, its header first."""
        return [(header, *(row[index] for row in self.rows)) for index, header in enumerate(self.headers)]

    def only(self, kept: Sequence[int]) -> Grid:
        """Return the table with the columns of these indices, in this order."""
        return replace(
            self,
            headers=tuple(self.headers[index] for index in kept),
            rows=tuple(tuple(row[index] for index in kept) for row in self.rows),
            left=tuple(place for place, index in enumerate(kept) if index in self.left),
            fixed=tuple(place for place, index in enumerate(kept) if index in self.fixed),
        )


Block = Grid | str
Line = tuple[str, str]  # a text, and the code of its looks on a terminal


def abreast(left: Sequence[Cells], right: Sequence[Cells]) -> tuple[tuple[str, ...], ...]:
    """Return the rows of two tables side by side with an empty column between; the shorter one is padded."""
    return tuple((*one, "", *other) for one, other in zip_longest(left, right, fillvalue=("", "", "")))


def present(*blocks: Block) -> list[Block]:
    """Return the blocks without empty texts and tables without rows."""
    return [block for block in blocks if (block.rows if isinstance(block, Grid) else block)]


def titled(title: str, lines: Iterable[object], sign: str = "  ") -> str:
    """Return the title and below it each line after `sign`; "" without lines."""
    below = [f"{sign}{line}" for line in lines]
    return "\n".join((title, *below)) if below else ""


def page_width(stream: TextIO) -> int | None:
    """Return the width of the output in characters: COLUMNS (if above 0), or the terminal's, at least LEAST_WIDTH,
    which is also that of a terminal of unknown width; None (unlimited) without both.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return max(LEAST_WIDTH, int(columns))
    if not stream.isatty():
        return None
    try:
        return max(LEAST_WIDTH, os.get_terminal_size(stream.fileno()).columns)
    except OSError:  # it does not say
        return LEAST_WIDTH


def to_text(grid: Grid, width: int | None = None) -> str:
    """Return a table as text with aligned columns, a rule below the headers and no trailing blanks; lines of at most
    `width` (None: unlimited).
    """
    return "\n".join(text for text, _ in _laid(grid, width))


def wrapped(text: str, width: int | None) -> str:
    """Return the text with lines longer than `width` broken between words and indented alike; unchanged for None."""
    return text if width is None else "\n".join(part for line in text.split("\n") for part in wrap(line, width))


def condensed(grid: Grid) -> Grid:
    """Return the table without columns that have a header and only empty cells; columns with the same cell in all rows,
    if those are _ENOUGH or more, move into a line below the title. The first column and fixed ones do not move; a table
    that would lose all columns is unchanged.
    """
    columns = dict(enumerate(grid.columns))
    empty = {index for index, (header, *cells) in columns.items() if header and cells and not any(cells)}
    equal = {
        index
        for index, (header, *cells) in columns.items()
        if header and index and len(cells) >= _ENOUGH and len(set(cells)) == 1 and index not in grid.fixed
    } - empty
    if not empty | equal or len(empty | equal) >= len(columns):
        return grid
    kept = grid.only([index for index in columns if index not in empty | equal])
    if not equal:
        return kept
    alike = "In all rows: " + "; ".join(f"{columns[index][0]} {columns[index][1]}" for index in sorted(equal)) + "."
    return replace(kept, title="\n".join(part for part in (grid.title, alike) if part))


def _laid(grid: Grid, width: int | None) -> Iterator[Line]:
    """Yield (line, terminal code) for a table: its title, if any, and its `condensed` columns, within `width`."""
    grid = condensed(grid)
    if grid.title:
        yield from ((line, _BOLD) for line in wrapped(clean(grid.title), width).split("\n"))
    rows = tuple(tuple(map(clean, row)) for row in grid.rows)
    yield from _fitting(replace(grid, headers=tuple(map(clean, grid.headers)), rows=rows), width)


def _fitting(grid: Grid, width: int | None) -> Iterator[Line]:
    """Yield the lines of a table within `width` (None: unlimited). Tried in turn: natural widths; wrapped words with
    wide, then narrow gaps; long names broken; bands of columns, each with the first; of two columns, the wider is cut.
    """
    natural = [max(map(len, column)) for column in grid.columns]
    if width is None or _total(natural) <= width:
        yield from _lines(grid, natural)
        return
    for split, gap in ((False, _GAPS[0]), (False, _GAPS[1]), (True, _GAPS[1])):
        least = [
            min(natural[index], _least_of(column, split=split, words=index in grid.left), width)
            for index, column in enumerate(grid.columns)
        ]
        if _total(least, gap) <= width:
            yield from _lines(grid, _shared(natural, least, width, gap), gap)
            return
    bands = [[0]]
    for index in range(1, len(least)):
        if len(bands[-1]) > 1 and _total([least[one] for one in (*bands[-1], index)]) > width:
            bands.append([0])
        bands[-1].append(index)
    if len(bands) == 1:  # two columns that do not fit beside each other: the wider one is cut
        while _total(least, _GAPS[-1]) > width:
            least[least.index(max(least))] -= 1
        yield from _lines(grid, least, _GAPS[-1])
        return
    for number, band in enumerate(bands):
        if number:
            yield "", _PLAIN
        yield from _fitting(grid.only(band), width)


def _lines(grid: Grid, widths: Sequence[int], gap: str = _GAPS[0]) -> Iterator[Line]:
    """Yield (line, terminal code) for headers and rule, if there are headers, and the rows; the marked one is green."""
    if any(grid.headers):
        yield from ((line, _BOLD) for line in _row(grid, grid.headers, widths, gap, heads=True))
        yield gap.join("-" * width for width in widths).rstrip(), _BOLD
    for number, row in enumerate(grid.rows):
        yield from ((line, _CHOSEN if number == grid.marked else _PLAIN) for line in _row(grid, row, widths, gap))


def _row(grid: Grid, row: Sequence[str], widths: Sequence[int], gap: str, *, heads: bool = False) -> Iterator[str]:
    """Yield the lines of a row, several if cells are wrapped; columns in grid.left are left-aligned, others
    right-aligned. heads: whether the row is the header, whose cells break at more seams.
    """
    cells = [_wrapped_cell(cell, width, heads=heads) for cell, width in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        padded = (
            text.ljust(width) if index in grid.left else text.rjust(width)
            for index, (text, width) in enumerate(zip(parts, widths, strict=True))
        )
        yield gap.join(padded).rstrip()


def _wrapped_cell(cell: str, width: int, *, heads: bool) -> list[str]:
    """Return the lines of a cell, each at most `width` characters, broken at seams, then at parts of names, else
    anywhere. heads: whether headers' seams count.
    """
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
    """Return column widths that fill `width`: each character beyond the least widths goes to the column that wraps most
    (natural over present width); none grows beyond its natural width.
    """
    widths = list(least)
    for _ in range(width - _total(least, gap)):
        if wanting := [index for index, number in enumerate(widths) if number < natural[index]]:
            widths[max(wanting, key=lambda index: natural[index] / widths[index])] += 1
    return widths


def _total(widths: Sequence[int], gap: str = _GAPS[0]) -> int:
    return sum(widths) + len(gap) * (len(widths) - 1)


def _least_of(column: Sequence[str], *, split: bool, words: bool) -> int:
    """Return the least width of a column without breaking words (at most LONGEST_WORD of each); cells wrap only if
    `words`, the header always. split: whether long names may be broken at their parts.
    """

    def least(text: str, heads: bool = False) -> int:
        parts = [word.rstrip() for word in pieces(text, heads=heads)]
        parts = [part for word in parts for part in name_parts(word)] if split else parts
        return max((min(len(part), LONGEST_WORD) for part in parts), default=0)

    header, *cells = column
    return max(least(header, heads=True), *(least(cell) if words else len(cell) for cell in cells), 0)


def plain(blocks: Sequence[Block], width: int | None = None) -> str:
    """Return all blocks as text with an empty line between them and one newline at the end."""
    return "\n\n".join("\n".join(text for text, _ in _styled(block, width)) for block in blocks) + "\n"


def _styled(block: Block, width: int | None) -> Iterator[Line]:
    """Yield the lines of a block with their terminal codes."""
    if isinstance(block, Grid):
        yield from _laid(block, width)
    else:
        yield from ((line, _PLAIN) for line in wrapped(clean(block), width).split("\n"))


def show(blocks: Sequence[Block], stream: TextIO) -> None:
    """Write the blocks to a stream, an empty line between two, at the page's width. On a terminal headers and marked
    rows get colour codes, unless NO_COLOR is set or TERM is dumb.
    """
    width = page_width(stream)
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        stream.write(plain(blocks, width))
        return
    lines = (
        "\n".join(f"\x1b[{code}m{text}\x1b[0m" if code else text for text, code in _styled(block, width))
        for block in blocks
    )
    stream.write("\n\n".join(lines) + "\n")


def pieces(text: str, *, heads: bool = False) -> list[str]:
    """Return the parts of a cell between which it may be broken: after blanks, after "+" between words, and in headers
    after "/". Leading blanks stay with the first.
    """
    start = len(text) - len(text.lstrip())
    first, *others = re.split(_SEAMS + r"|(?<=/)(?=\w\w)" * heads, text[start:])
    return [text[:start] + first, *others]


def name_parts(word: str) -> list[str]:
    """Return the parts of a name longer than _LONG_NAME between which it may be broken (after "_" and "."); [word]
    for others.
    """
    long = len(word.rstrip()) > _LONG_NAME and "/" not in word
    return re.split(r"(?<=[a-zA-Z][_.])(?=[a-zA-Z])", word) if long else [word]


def wrap(line: str, width: int) -> list[str]:
    """Return a line as lines of at most `width` with its indent; a longer word stays whole, and a "%" stays with its
    number. A line that begins with "symconfig" or an option is broken before options only, with trailing backslashes.
    """
    if len(line) <= width:
        return [line]
    text = line.lstrip()
    indent = line[: len(line) - len(text)]
    if text.startswith(("--", "symconfig ")):
        return _command(line, indent, width)
    lines = textwrap.wrap(
        line.replace(" %", _PERCENT),
        width,
        subsequent_indent=indent + _ITEM * text.startswith("- "),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [each.replace(_PERCENT, " %") for each in lines]


def _command(line: str, indent: str, width: int) -> list[str]:
    """Return a command as lines of up to `width`, where possible, with trailing backslashes; it is not broken between
    an option and the one word behind it. The first starts with `indent`, later ones 2 further in.
    """
    lines: list[str] = []
    for part in _options(line.strip()):
        if lines and len(lines[-1]) + 1 + len(part) + len(" \\") <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(indent + ("  " if lines else "") + part)
    return [f"{each} \\" for each in lines[:-1]] + lines[-1:]


def _options(command: str) -> Iterator[str]:
    """Yield the words of a command, an option with the one word behind it unless that is an option; quoted text is a
    word.
    """
    words = re.findall(r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|\\.|[^\s"'])+|\S""", command)
    part: list[str] = []
    for word in words:
        if part and (word.startswith("-") or not part[0].startswith("-") or len(part) > 1):
            yield " ".join(part)
            part = []
        part.append(word)
    yield " ".join(part)


def page_section(title: str, blocks: Sequence[Block]) -> str:
    """Return blocks as a section of a Markdown page, tables of at most LEAST_WIDTH as fenced plain text."""
    texts = (
        "\n".join((_FENCE, to_text(each, LEAST_WIDTH), _FENCE)) if isinstance(each, Grid) else each for each in blocks
    )
    return "\n\n".join((f"## {title}", *texts)) + "\n"


def narrow(page: str, width: int = LEAST_WIDTH) -> str:
    """Return a Markdown page with long lines wrapped; fenced and indented code and headings are unchanged."""
    fenced = False
    done: list[str] = []
    for line in page.split("\n"):
        fenced ^= line.startswith(_FENCE)
        if fenced or line.startswith(("    ", "#", _FENCE)):
            done.append(line)
            continue
        glued = _CODE.sub(lambda code: code[0].replace(" ", _GLUE), _MEANS.sub(_GLUE, line))
        done += [part.replace(_GLUE, " ") for part in wrap(glued, width)]
    return "\n".join(done)
