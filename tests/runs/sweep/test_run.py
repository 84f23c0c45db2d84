"""A sweep as a command: its table, what it does again and what it does not, and what it says."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from symconfig.install import VERSION
from symconfig.runs.sweep import run as sweeping
from symconfig.runs.sweep.columns import COLUMNS
from symconfig.runs.sweep.run import Row, Status, Task
from tests.cli.support import Run, run
from tests.runs.sweep.support import SMALL, file_of, planned, read, replace_pool

__all__ = ["run"]


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def failing(status: Status, which: str) -> object:
    def answer(one: Task) -> Row:
        found = json.loads(one.job)
        return Row(one.id, status, VERSION, "it is so") if str(found["gpus"]) == which else planned(one)

    return answer


def test_a_table_with_a_row_for_every_combination(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_pool(monkeypatch, planned)
    outcome = run("sweep", file_of(tmp_path), "--out", tmp_path / "t.csv")
    assert outcome.code == 0
    assert "16 plans of 16 combinations: 16 planned" in outcome.out
    assert "wrote 16 rows into" in outcome.out
    table = rows(tmp_path / "t.csv")
    assert list(table[0]) == [column.name for column in COLUMNS]
    assert [row["model"] for row in table] == ["llama2-7b"] * 8 + ["qwen2.5-7b-lora"] * 8
    assert table[0]["status"] == "planned"
    assert table[0]["step_s"] == "2.0"


def test_one_is_told_as_one(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_pool(monkeypatch, planned)
    text = "job: {cluster: h100, model: llama2-7b, global_batch_size: 64}\nsweep: {gpus: [8, 16]}\nexclude: [{gpus: 8}]"
    source, out = file_of(tmp_path, text), tmp_path / "t.csv"
    first = run("sweep", source, "--out", out)
    assert "1 plan of 2 combinations: 1 planned\nexcluded by rules: 1" in first.out
    assert "wrote 1 row into" in first.out
    again = run("sweep", source, "--out", out)
    assert "done before: 1" in again.out


def test_what_is_done_stays_done(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = replace_pool(monkeypatch, planned)
    out = tmp_path / "t.csv"
    assert run("sweep", file_of(tmp_path), "--out", out).code == 0
    first, content = len(given), out.read_bytes()
    again = run("sweep", file_of(tmp_path), "--out", out, "--json").json()
    assert (len(given), again["known"], again["counts"]["planned"]) == (first, 16, 16)
    assert out.read_bytes() == content
    more = file_of(tmp_path, SMALL.replace("[64, 128]", "[128, 256, 64]"))
    assert run("sweep", more, "--out", out, "--json").json()["known"] == 16
    assert len(given) == first + 8
    assert [row["global_batch_size"] for row in rows(out)[:3]] == ["128", "256", "64"]
    run("sweep", more, "--out", out, "--force")
    assert len(given) == first + 8 + 24


def test_another_planner_plans_again(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = replace_pool(monkeypatch, planned)
    out = tmp_path / "t.csv"
    run("sweep", file_of(tmp_path), "--out", out)
    journal = tmp_path / "t.csv.journal"
    journal.write_text(journal.read_text(encoding="utf-8").replace(f'"{VERSION}"', '"0.0.1"'), encoding="utf-8")
    assert run("sweep", file_of(tmp_path), "--out", out, "--json").json()["known"] == 0
    assert len(given) == 32


def test_an_interrupt_writes_what_is_done_and_the_next_run_does_the_rest(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(one: Task) -> Row:
        if len(given) == 6:
            raise KeyboardInterrupt
        return planned(one)

    given = replace_pool(monkeypatch, answer)
    out = tmp_path / "t.csv"
    outcome = run("sweep", file_of(tmp_path), "--out", out)
    assert outcome.code == 130
    assert "11 left" in outcome.out
    assert len(rows(out)) == 5
    outcome = run("sweep", file_of(tmp_path), "--out", out)
    assert outcome.code == 0
    assert "done before: 5" in outcome.out
    assert len(rows(out)) == 16
    assert len(given) == 6 + 11


@pytest.mark.parametrize(
    ("status", "code", "again"),
    [(Status.INFEASIBLE, 0, 0), (Status.REFUSED, 0, 0), (Status.DEFECT, 1, 4), (Status.LOST, 1, 4)],
)
def test_a_combination_without_a_plan_is_a_row_with_its_reason(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Status, code: int, again: int
) -> None:
    given = replace_pool(monkeypatch, failing(status, "16"))  # type: ignore[arg-type]
    out = tmp_path / "t.csv"
    outcome = run("sweep", file_of(tmp_path), "--out", out)
    assert outcome.code == code
    assert re.search(rf"4\s+{status}\s+it is so", outcome.out)
    assert sum(row["status"] == status and row["reason"] == "it is so" for row in rows(out)) == 4
    assert {row["step_s"] for row in rows(out) if row["status"] == status} == {""}
    run("sweep", file_of(tmp_path), "--out", out)
    assert len(given) == 16 + again


def test_no_plan_at_all_is_exit_1(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_pool(monkeypatch, lambda one: Row(one.id, Status.INFEASIBLE, VERSION, "nothing fits"))
    assert run("sweep", file_of(tmp_path), "--out", tmp_path / "t.csv").code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--out", "t.xlsx"), "--out: no table has this ending"),
        (("--out", "no/t.csv"), "--out: there is no such folder"),
        (("--jobs", "0"), "--jobs: wrong value"),
        (("--limit", "many"), "--limit: wrong value"),
        (("--limit", "15"), "too many combinations (got 2 model x 4 gpus x 2 global_batch_size = 16, need at most 15)"),
        (("--out", "there.csv"), "there.csv: this file exists already, and no journal of a sweep beside it"),
    ],
)
def test_an_option_that_is_wrong_is_named_before_any_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    given = replace_pool(monkeypatch, planned)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").write_text("x", encoding="utf-8")
    outcome = run("sweep", file_of(tmp_path), *words)
    assert outcome.code == 2
    assert said in outcome.err
    assert given == []


def test_a_defect_of_the_planner_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*arguments: object, **options: object) -> object:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(sweeping, "best_plan", broken)
    row = sweeping.done(Task.of(read(SMALL).points[0]))
    assert (row.status, row.reason) == (Status.DEFECT, "ZeroDivisionError: no")
