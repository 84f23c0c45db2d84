"""Tables as text and on a terminal."""

from __future__ import annotations

import io

from symconfig.format import clean
from symconfig.report.grid import Grid, plain, show, to_text

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
