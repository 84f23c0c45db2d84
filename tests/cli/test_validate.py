"""`symconfig validate`: its contract, and what it says to bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import Run
from tests.measured.support import file_of, run_text


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    rows = (
        run_text("kor-a", "{step_s: 8.8, peak_allocated_gib: 60.0, memory_rank: max}"),
        run_text("kor-b", "{tokens_per_s_per_gpu: 718.6}", recompute="full"),
        run_text("kor-c", "{oom: true}", tp=1, dp=8),
        run_text("kor-d", "{layer_forward_ms: 7.2, layer_backward_ms: 13.1}").replace("  sweep: s\n", ""),
        run_text("kor-e", "{step_s: 8.8}", gpu="abacus"),
    )
    return file_of(tmp_path, *rows)


def test_a_table_for_people(run: Run, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    outcome = run.done("validate", runs)
    assert outcome.err == ""
    for word in ("MAPE", "bias", "worst row", "tau", "regret", "recall", "false alarms", "the median's", "too low by"):
        assert word in outcome.out, word
    assert "4 of 5 rows scored, 1 skipped (20.0 %)" in outcome.out
    assert "is no GPU of the zoo (got abacus)" in outcome.out
    assert "korthikanti2022" in outcome.out
    assert "* 1 row leaves out options" in outcome.out
    assert "+ where too much is predicted" in " ".join(outcome.out.split())
    assert max(map(len, outcome.out.splitlines())) <= 120


def test_json_is_the_contract(run: Run, runs: Path) -> None:
    data = run("validate", runs, "--json").json()
    assert data["schema"] == "symconfig.validate/1"
    (source,) = data["sources"]
    assert (source["name"], source["rows"]) == ("korthikanti2022", 4)
    assert set(source["time"]) >= {"n", "mape", "bias", "max"}
    assert set(source["memory"]) >= {"n", "mape", "worst_under"}
    assert set(source["oom"]) >= {"n", "recall", "false_oom_rate"}
    (sweep,) = source["sweeps"]
    assert set(sweep) >= {"name", "n", "kendall_tau", "regret"}
    assert source["time"]["n"] == 2
    assert (source["oom"]["n"], source["oom"]["recall"], source["oom"]["false_oom_rate"]) == (3, 1.0, 0.0)
    assert (source["stated"]["rows"], source["assumed"]["rows"]) == (3, 1)
    assert [row["id"] for row in data["rows"]] == ["kor-a", "kor-b", "kor-c", "kor-d"]
    assert [row["id"] for row in data["skipped"]] == ["kor-e"]
    assert "abacus" in data["skipped"][0]["reason"]


def test_rows_of_the_json_give_the_scores_back(run: Run, runs: Path) -> None:
    data = run("validate", runs, "--json").json()
    rows = {row["id"]: row for row in data["rows"]}
    errors = [
        row["predicted"]["step_s"] / row["measured"]["step_s"] - 1 for row in rows.values() if row["measured"]["step_s"]
    ]
    assert data["sources"][0]["time"]["mape"] == pytest.approx(sum(map(abs, errors)) / 2)
    assert data["sources"][0]["time"]["max"] == pytest.approx(max(map(abs, errors)))
    a, b, c, d = rows.values()
    assert a["measured"]["memory_bytes"] == 60 * 2**30
    assert a["error"]["memory"] == pytest.approx(a["predicted"]["memory_bytes"] / a["measured"]["memory_bytes"] - 1)
    assert b["measured"]["step_from"] == "tokens_per_s_per_gpu"
    assert b["measured"]["step_s"] == pytest.approx(32 * 2048 / 8 / 718.6)
    assert (c["predicted"]["oom"], c["measured"]["oom"], c["measured"]["step_s"]) == (True, True, None)
    assert d["measured"]["layer_forward_s"] == pytest.approx(7.2e-3)
    assert (a["assumed"], c["assumed"]) == ([], ["zero_stage"])


def test_nothing_scored_is_a_failed_check(run: Run, tmp_path: Path) -> None:
    outcome = run("validate", file_of(tmp_path, run_text("a", "{step_s: 1.0}", gpu="abacus")))
    assert outcome.code == 1
    assert "0 of 1 rows scored" in outcome.out


def test_a_log_is_not_measured_yaml(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("iteration 1/ 5 | elapsed time per iteration (ms): 1.0 |\n[a: b: c\n", encoding="utf-8")
    said = run.refused("validate", log)
    assert said.count("error:") == 1
    assert "train.log: holds no measured runs" in said
    assert "symconfig calibrate, if it is a log" in said


def test_a_model_that_nobody_knows_is_no_defect(run: Run, runs: Path) -> None:
    text = runs.read_text(encoding="utf-8")
    start, end = text.index("model: {"), text.index("}", text.index("model: {"))
    runs.write_text(text.replace(text[start : end + 1], "model: {name: qwen3-30b-a3c}"), encoding="utf-8")
    outcome = run("validate", runs)
    assert outcome.code == 1
    assert "no public model is known by this name, and the row does not state hidden_size" in outcome.out
    assert "Try: qwen3-30b-a3b" in run.refused("calibrate", runs)


def test_all_problems_come_at_once(run: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("schema: symconfig.measurements/1\nsource: {}\nrows:\n- id: a\n  task: sing\n", encoding="utf-8")
    empty = file_of(tmp_path, name="none")
    empty.write_text(empty.read_text() + "  []\n", encoding="utf-8")
    twice = file_of(tmp_path, run_text("x", "{step_s: 1.0}"), run_text("x", "{step_s: 1.0}"), name="twice")
    (tmp_path / "folder").mkdir()
    outcome = run("validate", tmp_path / "missing.yaml", bad, empty, twice, tmp_path / "folder")
    assert outcome.code == 2
    assert outcome.out == ""
    for said in (
        "missing.yaml: there is no such file",
        "bad.yaml:5:9: rows[0].task",
        "none.yaml:4:3: rows: holds no rows",
        "twice.yaml:15:7: rows[1].id: this id stands twice, first on line 4",
        "folder: this folder holds no measurements",
    ):
        assert said in outcome.err, said
