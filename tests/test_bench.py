"""The record of `make bench`: when it is too old, what it keeps, and its table in docs/evidence/speed.md. No timing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench, jobs, record
from benchmarks.rows import ROWS, Effort, Row, Target

MEASURED = {"ratio": 2.5, "cpu_s": 1.25, "wall_s": 1.5, "peak_mib": 70.4, "processes": 5}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a package with a file in each folder of the solver."""
    for folder in record.SOLVER:
        (tmp_path / folder / "part").mkdir(parents=True)
        (tmp_path / folder / "part" / "a.py").write_text("x = 1\n", encoding="utf-8")
    return tmp_path


def test_the_fingerprint_is_of_the_solvers_sources_and_their_names(package: Path) -> None:
    found = [record.fingerprint(package)]
    for folder in record.SOLVER:
        (package / folder / "part" / "a.py").write_text("x = 2\n", encoding="utf-8")
        found.append(record.fingerprint(package))
    (package / "solve" / "part" / "a.py").rename(package / "solve" / "part" / "b.py")
    found.append(record.fingerprint(package))
    assert len(set(found)) == len(record.SOLVER) + 2
    (package / "render").mkdir()
    (package / "render" / "a.py").write_text("x = 1\n", encoding="utf-8")
    (package / "solve" / "data.json").write_text("{}", encoding="utf-8")
    assert record.fingerprint(package) == found[-1]


def test_a_record_is_new_until_the_solver_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, history = tmp_path / "results.json", tmp_path / "history.jsonl"
    assert "Run make bench" in record.check(results)
    record.put({row.name: MEASURED for row in ROWS}, results, history)
    assert record.check(results) == ""
    monkeypatch.setattr(record, "fingerprint", lambda: "another")
    assert "results.json is older than the solver: no row was measured" in record.check(results)
    record.put({row.name: MEASURED for row in ROWS[1:]}, results, history)
    assert f"1 of {len(ROWS)} rows were not measured with these sources ({ROWS[0].name})" in record.check(results)


def test_the_check_fails_with_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(record, "check", lambda: "too old")
    assert bench.main(["--check"]) == 1
    assert capsys.readouterr().err == "error: too old\n"


def test_rows_that_were_not_measured_keep_their_figures_and_the_history_grows(tmp_path: Path) -> None:
    results, history = tmp_path / "results.json", tmp_path / "history.jsonl"
    record.put({"help": MEASURED, "rate": {"candidates_per_cpu_s": 10.0, "outcomes": {"planned": 1}}}, results, history)
    record.put({"help": {**MEASURED, "ratio": 3.0}}, results, history)
    rows = record.read(results)["rows"]
    assert (rows["help"]["ratio"], rows["rate"]["candidates_per_cpu_s"]) == (3.0, 10.0)
    first, second = (json.loads(line) for line in history.read_text(encoding="utf-8").splitlines())
    assert first["rows"] == {"help": MEASURED, "rate": {"candidates_per_cpu_s": 10.0}}
    assert second["rows"]["help"]["ratio"] == 3.0
    assert {"date", "commit", "solver", "machine"} <= set(second)


def test_a_target_that_is_missed_is_printed_as_such() -> None:
    row = next(row for row in ROWS if row.name == "plan-deepseek-v3")
    assert record.line(row, {**MEASURED, "ratio": 6.1}).count("MISSED") == 1
    assert record.line(row, {**MEASURED, "ratio": 6.1, "peak_mib": 301}).count("MISSED") == 2
    assert "MISSED" not in record.line(row, {**MEASURED, "ratio": 6.0})


def test_a_rate_must_be_reached() -> None:
    target = Target("plans_per_s", 20, "a second", at_least=True)
    assert [target.met({"plans_per_s": value}) for value in (19.9, 20.0)] == [False, True]


def test_rows_have_names_of_their_own_and_are_chosen_by_pattern() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert [row.name for row in bench.chosen(["help", "depth-*"])] == ["help", "depth-adaptive", "depth-exact"]
    with pytest.raises(SystemExit, match="no row is named nothing"):
        bench.chosen(["help", "nothing"])


def test_random_jobs_are_always_the_same_and_a_percentile_is_one_of_the_values() -> None:
    assert jobs.jobs(5) == jobs.jobs(9)[:5]
    assert jobs.jobs(5) != jobs.jobs(5, seed=1)
    assert [jobs.percentile([1.0, 2.0, 3.0, 4.0], share) for share in (25, 50, 90, 99)] == [1.0, 2.0, 4.0, 4.0]


def test_the_page_has_the_table_of_the_record(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text(record.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    record.write_page(record.read(), page)
    assert page.read_text(encoding="utf-8") == record.PAGE.read_text(encoding="utf-8")
    assert record.TABLE.search(page.read_text(encoding="utf-8"))


def test_the_table_has_a_line_for_each_plan_and_sentences_for_the_rest() -> None:
    rows = {
        "plan-gpt3-175b": MEASURED, "sweep": {"plans_per_s": 21.0}, "second-plan": {"cpu_s": 0.08},
        "random-jobs": {"jobs": 500, "p50": 1.5, "p99": 9.0},
    }  # fmt: skip
    text = record.table({"rows": rows})
    for said in ("| plan gpt3-175b, 512 a100-80gb | 1.5 | 2.5 | 70 |", "0.08 s", "21.0 plans a second",
                 "half take up to 1.5 imports, 99 in 100 up to 9.0"):  # fmt: skip
        assert said in text


def raising(error: BaseException) -> Callable[[Effort], dict[str, Any]]:
    def measure(effort: Effort) -> dict[str, Any]:
        raise error

    return measure


def test_what_was_measured_is_recorded_and_said_whatever_else_went_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names: list[str] = []
    monkeypatch.setattr(record, "put", names.extend)
    monkeypatch.setattr(record, "write_page", lambda results: None)

    def measured(**rows: Callable[[Effort], dict[str, Any]]) -> int:
        every = [Row(name, name, measure, (Target("ratio", 2),)) for name, measure in rows.items()]
        return bench.measure(every, quick=False, recorded=True)

    good, bad = lambda effort: MEASURED, raising(RuntimeError("python -m symconfig ended with 70"))
    assert measured(help=good) == 0  # a missed target fails nothing
    assert "MISSED" in capsys.readouterr().out
    assert measured(sweep=bad, rate=good) == 1
    assert "sweep" in capsys.readouterr().out
    with pytest.raises(KeyboardInterrupt):
        measured(jobs=good, rest=raising(KeyboardInterrupt()))
    assert names == ["help", "rate", "jobs"]
