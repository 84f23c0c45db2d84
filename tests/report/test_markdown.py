"""REPORT.md as narrow as a terminal, and still the same page."""

from __future__ import annotations

from symconfig.report.grid import narrow

WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"


def test_text_is_wrapped_and_an_item_of_a_list_stays_one() -> None:
    assert narrow(f"# {WORDS}\n\n{WORDS}\n\n- {WORDS}\n", 40).split("\n") == [
        f"# {WORDS}",
        "",
        "one two three four five six seven eight",
        "nine ten eleven twelve thirteen fourteen",
        "fifteen sixteen",
        "",
        "- one two three four five six seven",
        "  eight nine ten eleven twelve thirteen",
        "  fourteen fifteen sixteen",
        "",
    ]


def test_commands_and_drawings_stay_as_they_are() -> None:
    page = f"    {WORDS}\n\n```\n{WORDS}\n| {WORDS} |\n```\n"
    assert narrow(page, 40) == page


def test_no_word_becomes_a_sign_of_markdown() -> None:
    text = "a sum of so many things is 1234567890 + 12345 or - 3 or # 4 or 5. six"
    for width in range(20, 60):
        lines = narrow(text, width).split("\n")
        assert not any(line.startswith(("+ ", "- ", "# ", "5. ")) for line in lines)
        assert " ".join(lines) == text


def test_code_to_be_copied_stays_on_one_line() -> None:
    assert "`symconfig explain PLAN.json`" in narrow(f"one two three `symconfig explain PLAN.json` {WORDS}", 40)


def test_a_table_that_is_too_wide_becomes_plain_text_and_another_one_stays() -> None:
    small = "| a | b |\n|---|---|\n| 1 | 2 |"
    assert narrow(small, 40) == small
    wide = f"|  | choice |\n|---|---:|\n| one\\|two | {WORDS} |\n| three | 4 |"
    lines = narrow(wide, 40).split("\n")
    assert (lines[0], lines[-1]) == ("```", "```")
    assert max(map(len, lines)) <= 40
    assert any(line.startswith("one|two") for line in lines)
    wide = f"|  | choice |\n|---|---|\n| one | {WORDS} |\n| three | 4 |"
    assert max(map(len, narrow(wide, 40).split("\n"))) <= 40
