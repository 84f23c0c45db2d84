"""A page in Markdown that is also read in a terminal: no line is wider than that, and it means the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from symconfig.report.grid import LEAST_WIDTH, Grid, to_text
from symconfig.report.lines import wrap

_FENCE = "```"
_GLUE = "\0"  # stands for a blank at which no line is broken
_LONGEST_CODE = 60  # letters of `code` that are kept on one line, to be copied
_CODE = re.compile(rf"`[^`]{{1,{_LONGEST_CODE}}}`")
_MEANS = re.compile(r" (?=(?:[-+*>|]|#+|\d+[.)])(?: |$))")  # before what would begin a list, a heading, a quotation
_CELLS = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"\|(?:\s*:?-+:?\s*\|)+")


def narrow(page: str, width: int = LEAST_WIDTH) -> str:
    """Return a Markdown page with long lines wrapped and tables wider than `width` as fenced plain text; code and
    headings are unchanged.
    """
    fenced = False
    done: list[str] = []
    for is_table, lines in groupby(page.split("\n"), lambda line: line.startswith("|")):
        if is_table and not fenced:
            done += _table(list(lines), width)
            continue
        for line in lines:
            fenced ^= line.startswith(_FENCE)
            done += [line] if fenced or line.startswith(("    ", "#", _FENCE)) else _text(line, width)
    return "\n".join(done)


def _text(line: str, width: int) -> list[str]:
    """Return the wrapped lines of a paragraph or list item; short `code` is not broken."""
    glued = _CODE.sub(lambda code: code[0].replace(" ", _GLUE), _MEANS.sub(_GLUE, line))
    return [part.replace(_GLUE, " ") for part in wrap(glued, width)]


def _table(lines: Sequence[str], width: int) -> Iterator[str]:
    """Yield a table's lines, or the same table as fenced plain text if it is wider than `width`."""
    if len(lines) < 2 or not _RULE.fullmatch(lines[1]) or max(map(len, lines)) <= width:
        yield from lines
        return
    headers, rule, *rows = ([cell.strip().replace("\\|", "|") for cell in _CELLS.split(line)[1:-1]] for line in lines)
    left = tuple(index for index, dashes in enumerate(rule) if not dashes.endswith(":"))
    yield from (_FENCE, *to_text(Grid(tuple(headers), tuple(map(tuple, rows)), left), width).split("\n"), _FENCE)
