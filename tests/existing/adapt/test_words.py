"""Edits of a shell script, in the style of what stands there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from symconfig.existing.adapt import words
from symconfig.existing.launch.reading import Piece, Setting, Word
from symconfig.existing.launch.text import Edit, Text, edited


def setting(text: Text, option: str) -> Setting:
    """The option as it stands in the text, with its values."""
    start = text.data.decode().index(option)
    name, *values = option.split()
    found, at = [], start + len(name)
    for value in values:
        at = text.data.decode().index(value, at)
        place = text.place(at, at + len(value))
        found.append(
            Word(
                (
                    Piece(
                        value.strip("'\""),
                        text.place(at + value.startswith(("'", '"')), at + len(value) - value.endswith(("'", '"'))),
                    ),
                ),
                place,
            )
        )
        at += len(value)
    return Setting(name, name, tuple(found), text.place(start, start + len(option)))


def done(text: Text, ways: Iterator[tuple[Edit, ...]]) -> str:
    return edited(text, next(ways)).decode()


CONTINUED = "torchrun x.py \\\n    --a 1 \\\n    --b 2 \\\n    --c\n"
ARRAY = "ARGS=(\n\t--a 1  # one\n\t--b 2\n\t--c\n)\nrun ${ARGS[@]}\n"
STRING = 'OPTS="\n    --a 1 \\\n    --b 2 \\\n    --c"\nrun $OPTS\n'
INLINE = "run --a 1 --b 2 --c\n"
SPREAD = "ARGS=(--a 1 --b 2\n      --c)\n"


@pytest.mark.parametrize(
    ("source", "option", "left"),
    [
        (CONTINUED, "--b 2", "torchrun x.py \\\n    --a 1 \\\n    --c\n"),
        (CONTINUED, "--c", "torchrun x.py \\\n    --a 1 \\\n    --b 2\n"),
        (ARRAY, "--b 2", "ARGS=(\n\t--a 1  # one\n\t--c\n)\nrun ${ARGS[@]}\n"),
        (ARRAY, "--a 1", "ARGS=(\n\t# one\n\t--b 2\n\t--c\n)\nrun ${ARGS[@]}\n"),
        (STRING, "--c", 'OPTS="\n    --a 1 \\\n    --b 2"\nrun $OPTS\n'),
        (STRING, "--a 1", 'OPTS="\n    --b 2 \\\n    --c"\nrun $OPTS\n'),
        (INLINE, "--b 2", "run --a 1 --c\n"),
        (INLINE, "--c", "run --a 1 --b 2\n"),
        (SPREAD, "--a 1", "ARGS=(--b 2\n      --c)\n"),
        (SPREAD, "--c", "ARGS=(--a 1 --b 2)\n"),
    ],
)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_an_option_leaves_no_trace(source: str, option: str, left: str, ends: str) -> None:
    text = Text("run.sh", source.replace("\n", ends).encode())
    assert done(text, words.removed(setting(text, option), {"run.sh": text})) == left.replace("\n", ends)


@pytest.mark.parametrize(
    ("source", "option", "with_it"),
    [
        (CONTINUED, "--b 2", CONTINUED.replace("--b 2 \\\n", "--b 2 \\\n    --new 8 \\\n")),
        (CONTINUED, "--c", CONTINUED.replace("--c\n", "--c \\\n    --new 8\n")),
        (ARRAY, "--c", ARRAY.replace("\t--c\n", "\t--c\n\t--new 8\n")),
        (ARRAY, "--a 1", ARRAY.replace("--a 1  # one\n", "--a 1  # one\n\t--new 8\n")),
        (STRING, "--c", STRING.replace('--c"', '--c --new 8"')),
        (STRING, "--a 1", STRING.replace("--a 1 \\\n", "--a 1 \\\n    --new 8 \\\n")),
        (INLINE, "--a 1", INLINE.replace("--a 1", "--a 1 --new 8")),
    ],
)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_new_option_stands_as_its_neighbour_does(source: str, option: str, with_it: str, ends: str) -> None:
    text = Text("run.sh", source.replace("\n", ends).encode())
    ways = words.added(setting(text, option), ("--new", "8"), {"run.sh": text})
    assert done(text, ways) == with_it.replace("\n", ends)


def test_a_value_is_changed_where_it_is_written_and_else_where_it_is_used() -> None:
    text = Text("run.sh", b'TP=${TP:-8}\nrun --tp "$TP"\n')
    place = text.place(9, 10)
    word = Word((Piece("8", place, ("TP",)),), text.place(21, 26))
    ways = [edited(text, way).decode() for way in words.changed(word, "4", {"run.sh": text})]
    assert ways[:2] == ['TP=${TP:-4}\nrun --tp "$TP"\n', 'TP=${TP:-8}\nrun --tp "4"\n']


@pytest.mark.parametrize(
    ("source", "first"),
    [
        ("run --layout 'Et|tL'", "run --layout 'Ett|L'"),
        ('run --layout "Et|tL"', 'run --layout "Ett|L"'),
        ("run --layout Et+tL", "run --layout 'Ett|L'"),
    ],
)
def test_what_the_shell_would_read_is_quoted(source: str, first: str) -> None:
    text = Text("run.sh", source.encode())
    option = setting(text, source.removeprefix("run "))
    assert done(text, words.changed(option.values[0], "Ett|L", {"run.sh": text})) == first


def test_what_stands_in_no_file_of_its_own_is_not_edited() -> None:
    text = Text("run.sh", INLINE.encode())
    option = setting(text, "--b 2")
    assert not list(words.removed(option, {}))
    assert not list(words.added(option, ("--new",), {}))
    assert not list(words.changed(Word((Piece("2"),), text.place(0, 0)), "3", {}))
    through = Setting("--x", "--x", (), text.place(0, 3))  # where it is used: `run`
    assert not list(words.removed(through, {"run.sh": text}))
