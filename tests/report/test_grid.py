"""Tables as text and on a terminal."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.format import clean
from symconfig.report.grid import LEAST_WIDTH, Grid, page_width, plain, show, to_text, wrapped

GRID = Grid(("name", "s"), (("a", "1.0"), ("long name", "10.0")), left=(0,), title="T")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_line_up_and_no_line_ends_in_blanks() -> None:
    assert to_text(GRID) == "T\nname          s\n---------  ----\na           1.0\nlong name  10.0"


def test_without_a_terminal_the_text_is_plain() -> None:
    stream = io.StringIO()
    show(["first", GRID], stream)
    assert stream.getvalue() == plain(["first", GRID])
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_the_same_cells_and_no_markup_is_obeyed() -> None:
    stream = Terminal()
    show(["[bold]first[/bold]", Grid(("#", "name"), (("1", "[red]x[/red]"),), left=(1,))], stream)
    assert "[bold]first[/bold]" in stream.getvalue()
    assert "[red]x[/red]" in stream.getvalue()


def test_control_characters_reach_no_terminal() -> None:
    evil = "a\x1b[2Jb\rc\x07"
    assert clean(evil) == "a\\x1b[2Jb\\rc\\x07"
    for stream in (io.StringIO(), Terminal()):
        show([evil, Grid((evil,), ((evil,),), title=evil)], stream)
        assert "\x1b[2J" not in stream.getvalue()
        assert "\x07" not in stream.getvalue()


NUMBERS = st.from_regex(r"[0-9]{1,9}", fullmatch=True)
WORDS = st.lists(st.from_regex(r"[a-z]{1,12}", fullmatch=True), max_size=12).map(" ".join)


@given(st.data(), st.integers(1, 14), st.integers(0, 3), st.integers(1, 5), st.integers(80, 200))
def test_no_line_is_longer_than_the_page_and_no_word_is_lost(
    data: st.DataObject, numbers: int, words: int, rows: int, width: int
) -> None:
    columns = [NUMBERS] * numbers + [WORDS] * words
    grid = Grid(
        tuple(data.draw(st.from_regex(r"[a-z]{1,8}", fullmatch=True)) for _ in columns),
        tuple(tuple(data.draw(column) for column in columns) for _ in range(rows)),
        left=tuple(range(numbers, numbers + words)),
        title=data.draw(WORDS),
    )
    text = to_text(grid, width)
    assert max(map(len, text.split("\n"))) <= width
    said = Counter(text.replace(";", " ").replace(":", " ").split())
    for word, times in Counter(word for row in grid.rows for cell in row for word in cell.split()).items():
        assert said[word] >= times
    assert to_text(grid) == to_text(grid, 10**6)


@given(WORDS, st.integers(20, 100))
def test_a_broken_line_keeps_its_words_and_its_indent(text: str, width: int) -> None:
    line = "  " + text
    parts = wrapped(line, width).split("\n")
    assert " ".join(parts).split() == text.split()
    assert all(len(part) <= width for part in parts)
    assert all(part.startswith("  ") for part in parts)


def test_the_page_is_as_wide_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert page_width(io.StringIO()) is None
    monkeypatch.setenv("COLUMNS", "132")
    assert page_width(io.StringIO()) == page_width(Terminal()) == 132
    monkeypatch.setenv("COLUMNS", "40")
    assert page_width(io.StringIO()) == LEAST_WIDTH
    monkeypatch.setenv("COLUMNS", "wide")
    assert page_width(io.StringIO()) is None
