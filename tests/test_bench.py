"""The record of `make bench`: when it is too old, what it keeps, and its table in docs/evidence/speed.md. No timing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench, record
from benchmarks.rows import ROWS

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


def test_the_page_has_the_table_of_the_record(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text(record.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    record.write_page(record.read(), page)
    assert page.read_text(encoding="utf-8") == record.PAGE.read_text(encoding="utf-8")
    assert record.TABLE.search(page.read_text(encoding="utf-8"))
