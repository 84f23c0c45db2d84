"""What is done stays done: the journal of a sweep, whole or cut off, of this planner or another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.runs.sweep.journal import SCHEMA, journal
from symconfig.runs.sweep.task import Row, Status
from tests.runs.sweep.support import PLANNED

ROWS = [Row(f"{number:016x}", Status.PLANNED, "1+a", "", {**PLANNED, "step_s": 1.5 + number}) for number in range(3)]


def written(path: Path) -> Path:
    with journal(path) as kept:
        for row in ROWS:
            kept.add(row)
    return path


def read(path: Path) -> tuple[list[Row], int]:
    with journal(path) as kept:
        return list(kept.rows.values()), kept.dropped


def test_rows_come_back(tmp_path: Path) -> None:
    path = written(tmp_path / "x.journal")
    assert read(path) == (ROWS, 0)
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[0]) == {"schema": SCHEMA}


def test_a_journal_cut_anywhere_keeps_its_whole_rows_and_goes_on(tmp_path: Path) -> None:
    content = written(tmp_path / "x.journal").read_bytes()
    ends = [number + 1 for number, byte in enumerate(content) if byte == ord("\n")]
    path = tmp_path / "cut.journal"
    for cut in (0, 5, *(end + more for end in ends for more in (-1, 0, 1))):
        path.write_bytes(content[:cut])
        whole = sum(end <= cut for end in ends[1:])
        rows, dropped = read(path)
        assert rows == ROWS[:whole]
        assert dropped == (0 if cut == 0 or cut in ends or cut > len(content) else 1)
        with journal(path) as kept:
            kept.add(ROWS[2])
        assert read(path) == ([*ROWS[: min(whole, 2)], ROWS[2]], 0)


def test_a_line_that_is_no_row_is_dropped_and_the_others_are_not(tmp_path: Path) -> None:
    path = written(tmp_path / "x.journal")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for wrong in ("\n", "{}\n", "[1]\n", lines[2].replace("planned", "plannd"), lines[2][:40] + "\n"):
        path.write_text("".join([*lines[:2], wrong, lines[3]]), encoding="utf-8")
        assert read(path) == ([ROWS[0], ROWS[2]], 1)


@pytest.mark.parametrize(
    ("status", "values"),
    [
        ("planned", {}),
        ("infeasible", PLANNED),
        ("planned", {**PLANNED, "more": 1}),
        *(
            ("planned", {**PLANNED, name: value})
            for name, value in (
                ("step_s", "abc"),
                ("step_s", None),
                ("step_s", True),
                ("step_s", float("nan")),
                ("step_s", 10**400),
                ("tp", 1.5),
                ("tp", None),
                ("tp", 2**70),
                ("tp", True),
                ("sequence_parallel", 1),
                ("recompute", 1),
                ("recompute", "\ud800"),
                ("cp_comm", 1),
                ("mfu", [0.5]),
            )
        ),
    ],
)
def test_a_row_that_no_plan_can_have_made_is_dropped(tmp_path: Path, status: str, values: dict[str, object]) -> None:
    path = written(tmp_path / "x.journal")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[2] = json.dumps({**json.loads(lines[2]), "status": status, "values": values}) + "\n"
    path.write_text("".join(lines), encoding="utf-8")
    assert read(path) == ([ROWS[0], ROWS[2]], 1)


def test_what_a_plan_need_not_have_may_be_missing(tmp_path: Path) -> None:
    row = Row(ROWS[0].id, Status.PLANNED, "1+a", "", {**PLANNED, "cp_comm": None, "step_high_s": None, "step_s": 2})
    with journal(tmp_path / "x.journal") as kept:
        kept.add(row)
    assert read(tmp_path / "x.journal") == ([row], 0)


def test_rows_of_another_planner_stay_apart(tmp_path: Path) -> None:
    path = written(tmp_path / "x.journal")
    other = Row(ROWS[0].id, Status.INFEASIBLE, "2+b", "nothing fits")
    with journal(path) as kept:
        kept.add(other)
    with journal(path) as kept:
        assert kept.rows[ROWS[0].id, "1+a"] == ROWS[0]
        assert kept.rows[ROWS[0].id, "2+b"] == other


@pytest.mark.parametrize("text", ['{"schema": "symconfig.sweep_journal/2"}\n', "id,model\n", "{}\n", "\xff\n"])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.journal"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="is not a journal of this version's sweeps"), journal(path):
        pass
    assert path.read_bytes() == text.encode("latin-1")


def test_two_sweeps_do_not_write_one_journal(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with (
        journal(tmp_path / "x.journal"),
        pytest.raises(InputError, match="another sweep is writing it"),
        journal(tmp_path / "x.journal"),
    ):
        pass


def test_fresh_forgets(tmp_path: Path) -> None:
    path = written(tmp_path / "x.journal")
    with journal(path, fresh=True) as kept:
        assert kept.rows == {}
    assert read(path) == ([], 0)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"), journal(tmp_path / "no" / "x.journal"):
        pass
