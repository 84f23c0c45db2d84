"""What is done stays done: the journal of a sweep, whole or torn, of this planner or another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.runs.sweep.run import Row, Status, appending, read_journal

ROWS = [Row(f"{number:016x}", Status.PLANNED, "1+a", "", {"step_s": 1.5 + number}) for number in range(3)]


def add(path: Path, *rows: Row) -> None:
    with appending(path) as append:
        for row in rows:
            append(row)


def test_rows_come_back_a_line_each(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    assert read_journal(path) == {}
    add(path, *ROWS)
    assert list(read_journal(path).values()) == ROWS
    assert [json.loads(line)["id"] for line in path.read_text(encoding="utf-8").splitlines()] == [r.id for r in ROWS]


def test_a_journal_cut_anywhere_keeps_its_whole_rows_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    add(path, *ROWS)
    content = path.read_bytes()
    ends = [number + 1 for number, byte in enumerate(content) if byte == ord("\n")]
    for cut in (0, 5, *(end + more for end in ends for more in (-2, 0, 1))):
        path.write_bytes(content[:cut])
        whole = ROWS[: sum(end <= cut for end in ends)]
        assert list(read_journal(path).values()) == whole
        add(path, ROWS[2])
        assert list(read_journal(path).values()) == [*whole[:2], ROWS[2]]


def test_a_line_that_is_no_row_is_passed_over_and_the_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    add(path, *ROWS)
    lines = path.read_bytes().splitlines(keepends=True)
    for wrong in (b"\n", b"{}\n", b"[1]\n", lines[1].replace(b"planned", b"plannd"), lines[1][:40] + b"\n", b"\xff\n"):
        path.write_bytes(b"".join([lines[0], wrong, lines[2]]))
        assert list(read_journal(path).values()) == [ROWS[0], ROWS[2]]


def test_rows_of_another_planner_stay_apart(tmp_path: Path) -> None:
    path, other = tmp_path / "x.journal", Row(ROWS[0].id, Status.INFEASIBLE, "2+b", "nothing fits")
    add(path, *ROWS)
    add(path, other)
    assert read_journal(path)[ROWS[0].id, "1+a"] == ROWS[0]
    assert read_journal(path)[ROWS[0].id, "2+b"] == other


def test_fresh_forgets(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    add(path, *ROWS)
    with appending(path, fresh=True):
        pass
    assert read_journal(path) == {}


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"), appending(tmp_path / "no" / "x.journal"):
        pass
