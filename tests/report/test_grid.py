"""Tables and text, as wide as the page, on a terminal and in REPORT.md; progress."""

from __future__ import annotations

import io
import shlex
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.cli.shared import Progress
from symconfig.format import clean
from symconfig.report.grid import LEAST_WIDTH, Grid, narrow, page_width, plain, show, to_text, wrapped
from tests.cli.terminal import Terminal

GRID = Grid(("name", "s"), (("a", "1.0"), ("long name", "10.0")), left=(0,), title="T")


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
        fixed=tuple(range(numbers + words)),  # what is said once is tested below
    )
    text = to_text(grid, width)
    assert max(map(len, text.split("\n"))) <= width
    said = Counter(text.replace(";", " ").replace(":", " ").split())
    for word, times in Counter(word for row in grid.rows for cell in row for word in cell.split()).items():
        assert said[word] >= times
    assert to_text(grid) == to_text(grid, 10**6)


def test_what_is_equal_in_all_rows_is_said_once_and_what_is_empty_not_at_all() -> None:
    rows = tuple((name, "8", "", "yes", "1") for name in "abc")
    grid = Grid(("name", "tp", "others", "sp", "step"), rows, left=(0, 2, 3), fixed=(4,))
    assert to_text(grid).split("\n") == ["In all rows: tp 8; sp yes.", "name  step", "----  ----", *(
        f"{name}        1" for name in "abc")]  # fmt: skip
    two = to_text(Grid(grid.headers, rows[:2], grid.left))
    assert "In all rows" not in two  # of two rows there is nothing to gain
    assert "others" not in two


def test_a_table_is_first_broken_in_its_words_then_at_its_gaps_and_never_within_a_name() -> None:
    headers = tuple(f"number{index}" for index in range(8))
    rows = tuple((*(str(index + row) for index in range(8)), "core_attn+mla_up_proj+moe_act") for row in range(2))
    text = to_text(Grid((*headers, "recompute"), rows, left=(8,)), 80)
    assert max(map(len, text.split("\n"))) <= 80
    assert [line[64:].strip() for line in text.split("\n")[2:5]] == ["core_attn+", "mla_up_proj+", "moe_act"]


def test_a_command_is_broken_so_that_a_shell_reads_it_on() -> None:
    command = "symconfig plan --model llama2-13b --set 'name=--a b' --gpus 64 --pin tp=8 --global-batch-size 1024"
    lines = wrapped(f"  {command}", 40).split("\n")
    assert max(map(len, lines)) <= 40
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)


def test_a_percent_sign_stays_with_its_number() -> None:
    assert wrapped("it takes 12.5 % longer", 13) == "it takes\n12.5 % longer"
    assert wrapped("it takes 12.5 % longer", 14).split("\n")[0] == "it takes"


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


SENTENCE = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"


def test_text_is_wrapped_and_an_item_of_a_list_stays_one() -> None:
    assert narrow(f"# {SENTENCE}\n\n{SENTENCE}\n\n- {SENTENCE}\n", 40).split("\n") == [
        f"# {SENTENCE}", "", "one two three four five six seven eight", "nine ten eleven twelve thirteen fourteen",
        "fifteen sixteen", "", "- one two three four five six seven", "  eight nine ten eleven twelve thirteen",
        "  fourteen fifteen sixteen", "",
    ]  # fmt: skip


def test_commands_and_drawings_stay_as_they_are() -> None:
    page = f"    {SENTENCE}\n\n```\n{SENTENCE}\n```\n"
    assert narrow(page, 40) == page


def test_no_word_becomes_a_sign_of_markdown() -> None:
    text = "a sum of so many things is 1234567890 + 12345 or - 3 or # 4 or 5. six"
    for width in range(20, 60):
        lines = narrow(text, width).split("\n")
        assert not any(line.startswith(("+ ", "- ", "# ", "5. ")) for line in lines)
        assert " ".join(lines) == text


def test_code_to_be_copied_stays_on_one_line() -> None:
    assert "`symconfig explain PLAN.json`" in narrow(f"one two three `symconfig explain PLAN.json` {SENTENCE}", 40)


def ticking(*moments: float) -> Callable[[], float]:
    rest = iter(moments)
    return lambda: next(rest)


def test_quick_work_shows_nothing() -> None:
    stream = io.StringIO()
    with Progress(stream, ticking(0.0, 0.3, 0.9)) as progress:
        progress("search", 0.3)
        progress("search", 0.9)
    assert stream.getvalue() == ""


def test_a_pipe_gets_no_progress() -> None:
    stream = io.StringIO()
    with Progress(stream, ticking(0.0, 1.5, 2.0, 7.0)) as progress:
        for share in (0.2, 0.3, 1.4):
            progress("search", share)
    assert stream.getvalue() == ""


def test_a_terminal_is_redrawn_and_left_clean() -> None:
    stream = Terminal()
    with Progress(stream, ticking(0.0, 1.5, 1.55, 1.7)) as progress:
        for share in (0.2, 0.3, 0.4):
            progress("search", share)
    assert stream.getvalue() == "\rsearch: 20 %\rsearch: 40 %\r" + " " * 12 + "\r"
