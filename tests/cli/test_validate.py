"""`symconfig validate`: its contract, its picture, one row explained, and what it says to bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import Run, run
from tests.measured.support import file_of, run_text

__all__ = ["run"]


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
    outcome = run("validate", runs)
    assert outcome.code == 0
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


def test_equal_files_give_equal_bytes(run: Run, runs: Path) -> None:
    assert run("validate", runs, "--json").out == run("validate", runs, "--json").out


def test_a_folder_stands_for_its_files(run: Run, runs: Path) -> None:
    file_of(runs.parent, run_text("sc-a", "{step_s: 8.8}"), name="megatron_sc21")
    data = run("validate", runs.parent, runs, "--json").json()
    assert [source["name"] for source in data["sources"]] == ["korthikanti2022", "megatron_sc21"]


def test_nothing_scored_is_a_failed_check(run: Run, tmp_path: Path) -> None:
    outcome = run("validate", file_of(tmp_path, run_text("a", "{step_s: 1.0}", gpu="abacus")))
    assert outcome.code == 1
    assert "0 of 1 rows scored" in outcome.out


# --- one row ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["kor-a", "kor-b", "kor-c", "kor-d"])
def test_an_explained_row_fits_a_hundred_columns(
    run: Run, runs: Path, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    outcome = run("validate", runs, "--explain", row)
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= 100


def test_an_explained_row_says_what_was_stated_assumed_and_predicted(run: Run, runs: Path) -> None:
    text = run("validate", runs, "--explain", "kor-a").out
    for said in (
        "Stated by the row",
        "hidden_size 6144",
        "attention_dropout: 0.1",
        "arXiv 2205.05198",
        "compute",
        "alone it would meet the measurement at",
        "measured",
        "allocated peak",
        "60.00",
        "fits",
        "it ran",
    ):
        assert said in text, said
    assert "forward" in run("validate", runs, "--explain", "kor-d").out
    assert "does not fit" in run("validate", runs, "--explain", "kor-c").out


def test_parts_of_an_explained_row_add_up(run: Run, runs: Path) -> None:
    data = run("validate", runs, "--explain", "kor-a", "--json").json()
    assert data["schema"] == "symconfig.validate.row/1"
    for total, unit in (("time", "s"), ("memory", "bytes")):
        said, values = data[total], [part["seconds" if unit == "s" else "bytes"] for part in data[total]["parts"]]
        assert sum(values) == pytest.approx(said[f"predicted_{unit}"])
        assert sum(part["share"] for part in said["parts"]) == pytest.approx(1.0)
        for part, value in zip(said["parts"], values, strict=True):
            if part["needed_factor"] is not None:
                changed = sum(values) - value + value * part["needed_factor"]
                assert changed == pytest.approx(said[f"measured_{unit}"])
    assert any(part["needed_factor"] for part in data["time"]["parts"])
    rows = run("validate", runs, "--json").json()["rows"]
    assert data["time"]["predicted_s"] == pytest.approx(rows[0]["predicted"]["step_s"])
    assert data["memory"]["predicted_bytes"] == pytest.approx(rows[0]["predicted"]["memory_bytes"])


def test_a_long_pipeline_is_shown_by_its_ends_and_its_fullest_stage(run: Run, tmp_path: Path) -> None:
    text = (
        run_text("a", "{step_s: 8.8}", tp=1, dp=1, micro=1).replace("pp: 1", "pp: 24").replace("gpus: 8,", "gpus: 24,")
    )
    path = file_of(tmp_path, text)
    outcome = run("validate", path, "--explain", "a").out
    stages = outcome[outcome.index("GiB at the peak") :].splitlines()[3:]
    shown = [line.split()[0] for line in stages[: stages.index("")]]
    assert shown == ["0", "1", "2", "3", "4", "5", "6", "…", "22", "23"]
    assert len(run("validate", path, "--explain", "a", "--json").json()["stages"]) == 24


def test_kinds_of_work_add_up_to_the_blocks_seconds(run: Run, runs: Path) -> None:
    """One stage: all computation and communication but what selective recompute repeats, which is a part of its own."""
    time = run("validate", runs, "--explain", "kor-a", "--json").json()["time"]
    parts = {part["name"]: part["seconds"] for part in time["parts"]}
    work = {each["name"]: each["forward_s"] + each["backward_s"] for each in time["work"]}
    assert sum(work.values()) == pytest.approx(parts["compute"] + parts["layer communication"])
    assert work["all-gather over tp"] + work["reduce-scatter over tp"] > 0
    assert work["matmuls of the layers"] > 0.5 * time["predicted_s"]
    text = run("validate", runs, "--explain", "kor-a").out
    assert "matmuls of the layers" in text
    assert "reduce-scatter over tp" in text


def test_waiting_for_the_host_is_a_kind_of_work(run: Run, tmp_path: Path) -> None:
    """Many small experts: the GPU waits for the thread that launches them, and the parts still add up."""
    experts = (
        "model: {name: M, num_hidden_layers: 4, hidden_size: 512, intermediate_size: 1024, vocab_size: 32000, "
        "num_attention_heads: 8, num_key_value_heads: 8, num_experts: 64, num_experts_per_tok: 2, "
        "moe_intermediate_size: 256}"
    )
    row = run_text("a", "{step_s: 1.0}", recompute="none", tp=1, dp=8)
    start, end = row.index("model: {"), row.index("}", row.index("model: {"))
    path = file_of(tmp_path, row.replace(row[start : end + 1], experts).replace("sequence_parallel: true, ", ""))
    time = run("validate", path, "--explain", "a", "--json").json()["time"]
    parts = {part["name"]: part["seconds"] for part in time["parts"]}
    work = {each["name"]: each["forward_s"] + each["backward_s"] for each in time["work"]}
    assert work["waiting for the host to launch kernels"] > 0.1 * parts["compute"]
    assert sum(work.values()) == pytest.approx(parts["compute"] + parts["layer communication"])


# --- bad input ----------------------------------------------------------------------------------------------------


def test_an_unknown_id_has_a_near_one(run: Run, runs: Path) -> None:
    outcome = run("validate", runs, "--explain", "kor-aa")
    assert outcome.code == 2
    assert outcome.err == "error: --explain: no row has this id (got kor-aa). Try: kor-a.\n"


def test_an_id_like_no_other_says_where_the_ids_are(run: Run, runs: Path) -> None:
    assert "Try: symconfig validate --json, which lists every id" in run("validate", runs, "--explain", "@@@").err


def test_a_log_is_not_measured_yaml(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("iteration 1/ 5 | elapsed time per iteration (ms): 1.0 |\n[a: b: c\n", encoding="utf-8")
    outcome = run("validate", log)
    assert outcome.code == 2
    assert outcome.err.count("error:") == 1
    assert "train.log: holds no measured runs" in outcome.err
    assert "symconfig calibrate, if it is a log" in outcome.err


def test_a_row_that_cannot_be_predicted_is_explained_by_its_reason(run: Run, runs: Path) -> None:
    outcome = run("validate", runs, "--explain", "kor-e")
    assert outcome.code == 2
    assert "kor-e of korthikanti2022: cluster.gpu: is no GPU of the zoo (got abacus)" in outcome.err


def test_a_model_that_nobody_knows_is_no_defect(run: Run, runs: Path) -> None:
    text = runs.read_text(encoding="utf-8")
    start, end = text.index("model: {"), text.index("}", text.index("model: {"))
    runs.write_text(text.replace(text[start : end + 1], "model: {name: qwen3-30b-a3c}"), encoding="utf-8")
    outcome = run("validate", runs)
    assert outcome.code == 1
    assert "no public model is known by this name, and the row does not state hidden_size" in outcome.out
    outcome = run("calibrate", runs)
    assert outcome.code == 2
    assert "Try: qwen3-30b-a3b" in outcome.err


def test_all_problems_come_at_once(run: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("schema: symconfig.measurements/1\nsource: {}\nrows:\n- id: a\n  task: sing\n", encoding="utf-8")
    empty = file_of(tmp_path, name="none")
    empty.write_text(empty.read_text() + "  []\n", encoding="utf-8")
    twice = file_of(tmp_path, run_text("x", "{step_s: 1.0}"), run_text("x", "{step_s: 1.0}"), name="twice")
    (tmp_path / "folder").mkdir()
    outcome = run("validate", tmp_path / "missing.yaml", bad, empty, twice, tmp_path / "folder", "--html", "a.gif")
    assert outcome.code == 2
    assert outcome.out == ""
    for said in (
        "missing.yaml: there is no such file",
        "bad.yaml:5:9: rows[0].task",
        "none.yaml:4:3: rows: holds no rows",
        "twice.yaml:15:7: rows[1].id: this id stands twice, first on line 4",
        "folder: this folder holds no measurements",
        "--html: this file is a page",
    ):
        assert said in outcome.err, said


def test_two_files_with_the_same_ids_are_refused(run: Run, runs: Path) -> None:
    copy = runs.with_name("copy.yaml")
    copy.write_bytes(runs.read_bytes())
    outcome = run("validate", runs, copy)
    assert outcome.code == 2
    assert "5 ids stand in" in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_json_of_an_error_is_json(run: Run, runs: Path) -> None:
    outcome = run("validate", runs.parent / "none.yaml", "--json")
    assert outcome.code == 2
    assert outcome.json()["schema"] == "symconfig.error/1"
