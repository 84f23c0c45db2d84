"""Fill the places of pages that tools write; the rest of a page is a person's.

A place lies between `<!-- NAME: written by `python -m tools …` -->` and `<!-- end of NAME -->`. Within a line it is
`<!-- NAME -->118<!-- end of NAME -->`, behind the first word of that line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from symconfig.report.grid import Grid

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
EVIDENCE = DOCS / "evidence"


def filled(text: str, parts: Mapping[str, str]) -> str:
    """Return a page's text with what the code makes of its places, by their names."""
    for name, made in parts.items():
        place = re.compile(rf"(<!-- {name}(?:: [^>]*)? -->)(\n?).*?(<!-- end of {name} -->)", re.DOTALL)
        if not place.search(text):
            raise SystemExit(f"the page has no place <!-- {name} --> for what is written there")
        text = place.sub(partial(_put, made), text)
    return text


def _put(made: str, at: re.Match[str]) -> str:
    return at[1] + _spaced(made, at[2]) + at[3]


def _spaced(made: str, line: str) -> str:
    """Return what is made between blank lines, or as it is within a line."""
    return "\n\n{}\n\n".format(made.strip("\n")) if line else made


def fill(page: Path, parts: Mapping[str, str]) -> None:
    """Write what the code makes into the places of a page."""
    page.write_text(filled(page.read_text(encoding="utf-8"), parts), encoding="utf-8")
    print(f"{page.name}: {', '.join(parts)}")


def markdown_rows(grid: Grid) -> list[str]:
    """Return a table as lines of Markdown: headers, rule and rows, without its title."""
    rule = "|".join("---" if column in grid.left else "---:" for column in range(len(grid.headers)))
    heads, *rows = ("| " + " | ".join(row) + " |" for row in (grid.headers, *grid.rows))
    return [heads, f"|{rule}|", *rows]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[int] = ()) -> str:
    """Return a table in Markdown. numbers: the columns that stand on the right."""
    cells = tuple(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)
    left = tuple(column for column in range(len(head)) if column not in numbers)
    return "\n".join(markdown_rows(Grid(tuple(head), cells, left))) + "\n"
