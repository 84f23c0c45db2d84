"""A sweep: its file of jobs, its table, what it does again and what it does not, and what it says."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.install import VERSION
from symconfig.runs.sweep import run as sweeping
from symconfig.runs.sweep.columns import COLUMNS
from symconfig.runs.sweep.job import digest_of, point_id, swept, with_defaults
from symconfig.runs.sweep.run import Row, Status, Task
from tests.cli.support import Run
from tests.runs.sweep.support import SMALL, file_of, planned, read, replace_pool
from tools.generate import is_current


def test_every_combination_in_the_written_order_the_last_axis_fastest() -> None:
    found = read(SMALL)
    assert found.combinations == len(found.points) == 16
    jobs = [(p.job["model"], p.job["gpus"], p.job["global_batch_size"]) for p in found.points]
    assert jobs[:5] == [
        ("llama2-7b", 8, 64),
        ("llama2-7b", 8, 128),
        ("llama2-7b", 16, 64),
        ("llama2-7b", 16, 128),
        ("llama2-7b", 32, 64),
    ]
    assert jobs[8] == ("qwen2.5-7b-lora", 8, 64)
    assert all(p.job["seq_length"] == 2048 and p.job["cluster"] == "h100" for p in found.points)
    assert found.points[0].model.name == "llama2-7b"


def test_a_combination_that_is_asked_for_twice_is_planned_once() -> None:
    text = SMALL.replace("gpus: [8,", "gpus: [16, 8, 8,")
    assert [p.job["gpus"] for p in read(text).points[:8:2]] == [16, 8, 32, 64]


@pytest.mark.parametrize(
    "more",
    [
        '  pins.tp: [1, "1"]\n',
        '  pins: [{tp: 1}, {tp: "1"}]\n',
        "  limits.memory_margin: [null, 0.04]\n",
        "  backend: [megatron, null]\n",
    ],
)
def test_what_is_written_in_two_ways_is_planned_once(more: str) -> None:
    found = read(SMALL + more)
    assert (found.combinations, len(found.points)) == (32, 16)


def test_fields_of_sections_and_null_for_none() -> None:
    text = SMALL + "  pins.tp: [null, 2]\n  limits.memory_margin: [0.1]\n"
    jobs = [p.job for p in read(text).points[:2]]
    assert [job.get("pins") for job in jobs] == [None, {"tp": 2}]
    assert [job["limits"] for job in jobs] == [{"memory_margin": 0.1}] * 2


def test_rules_leave_out_what_they_match_in_all_fields() -> None:
    rules = (
        "exclude:\n  - {model: llama2-7b, gpus: [32, 64]}\n  - {gpus: [8], global_batch_size: 64}\n"
        "  - {model: llama2-7b, cluster: a100-80gb}\n"
    )
    found = read(SMALL + rules)
    left = {(p.job["model"], p.job["gpus"], p.job["global_batch_size"]) for p in found.points}
    assert found.excluded == 16 - len(left) == 6
    assert ("llama2-7b", 32, 64) not in left
    assert ("qwen2.5-7b-lora", 32, 64) in left
    assert ("qwen2.5-7b-lora", 8, 64) not in left
    assert found.idle == (3,)


@pytest.mark.parametrize("rule", ["{pins.tp: 2}", '{pins.tp: "2"}', '{pins: {tp: "2"}}', "{pins.tp: [1, 2]}"])
def test_a_rule_matches_values_as_they_are_planned(rule: str) -> None:
    found = read(SMALL + f"  pins.tp: [null, 2]\nexclude: [{rule}]\n")
    assert (found.excluded, found.idle) == (16, ())
    assert all("pins" not in point.job for point in found.points)


def test_a_rule_compares_numbers_as_numbers() -> None:
    assert read(SMALL + "exclude: [{gpus: 8.0}]\n").excluded == 4
    assert read(SMALL + "  limits.memory_margin: [0, 0.1]\nexclude: [{limits.memory_margin: 0.0}]\n").excluded == 16


def test_ids_say_what_is_asked_and_nothing_else() -> None:
    first, second = (read(text).points for text in (SMALL, SMALL.replace("[64, 128]", "[128, 64]")))
    assert {p.id for p in first} == {p.id for p in second}
    assert len({p.id for p in first}) == 16
    point = first[0]
    edited = point.model.model_copy(update={"num_hidden_layers": 31})
    assert point_id(with_defaults(point.job), digest_of(point.model), digest_of(point.cluster)) == point.id
    assert point_id(with_defaults(point.job), digest_of(edited), digest_of(point.cluster)) != point.id
    faster = {**point.job, "training": {"lr": 1e-3}}  # in plan.json, of which a row has the digest
    assert point_id(with_defaults(faster), digest_of(point.model), digest_of(point.cluster)) != point.id


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("  gpus:", "  gpu:"), "SWEEP.yaml:4:3: sweep.gpu: cannot be swept. Try: gpus."),
        (
            ("[64, 128]", "[]"),
            "SWEEP.yaml:5:22: sweep.global_batch_size: wrong length (got [], need at least one entry).",
        ),
        (("[64, 128]", "[64, many]"), 'SWEEP.yaml:5:27: sweep.global_batch_size[1]: wrong value (got "many"'),
        (("[64, 128]", "[64]\n  pins.tp: [2, x]"), "SWEEP.yaml:6:16: sweep.pins.tp[1]: "),
        (("[64, 128]", "[64]\n  limits.memory_margin: [2.0]"), "SWEEP.yaml:6:26: sweep.limits.memory_margin[0]: "),
        (
            ("[64, 128]", "[64]\n  pins.tp: [1]\n  pins: [{tp: 2}]"),
            "SWEEP.yaml:6:3: sweep.pins.tp: `pins` is swept whole, too. Try: one of them.",
        ),
        (("[llama2-7b, qwen", "[llama2-7b, llama2-7b, xqwen"), "SWEEP.yaml:3:33: sweep.model[2]: unknown model"),
        (("[64, 128]", "[64]\n  seq_length: [1024]"), "sweep.seq_length: stands in `job`, too"),
        (("cluster: h100", "cluster: h10"), "SWEEP.yaml:1:16: job.cluster: unknown cluster"),
        (("cluster: h100", "gpu: 8"), "job.gpu: unknown field. Try: gpus."),
        (("{cluster: h100, ", "{"), "cluster: this field is missing (need in `job` or, as a list, in `sweep`)"),
        (("sweep:", "swept:"), "swept: unknown field. Try: sweep."),
        (("[64, 128]", "[64]\nexclude: [{gpu: 8}]"), "exclude[0].gpu: cannot be swept. Try: gpus."),
        (("[64, 128]", "[64]\nexclude: [{seq_length: 2048}]"), "the rules leave nothing to plan"),
    ],
)
def test_a_file_that_is_wrong_is_told_where(change: tuple[str, str], said: str) -> None:
    assert change[0] in SMALL
    with pytest.raises(InputError) as error:
        read(SMALL.replace(*change))
    assert said in str(error.value)


ONE = "model: llama2-7b\ncluster: h100\ngpus: 8\nglobal_batch_size: 64\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            ONE,
            "SWEEP.yaml:1:1: no field of the job has several values. Try: `sweep: {gpus: [8, 16]}`, or `symconfig",
        ),
        ("job: {model: llama2-7b, gpus: 8}\n", "no field of the job has several values"),
        (
            ONE.replace("gpus: 8\n", "") + "sweep: {gpus: [8, 16]}\n",
            "SWEEP.yaml:2:1: cluster: is no field of the sweep itself (need under `job:`, or with a list of",
        ),
    ],
)
def test_a_file_of_one_job_says_what_a_sweep_has_beside_it(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        read(text)
    assert said in str(error.value)
    assert "missing" not in str(error.value)


def test_all_problems_come_at_once() -> None:
    text = "job: {cluster: h10}\nsweep: {model: [no, llama2-7b], gpus: [x], global_batch_size: [0]}\n"
    with pytest.raises(InputError) as error:
        read(text)
    said = [problem.field for problem in error.value.problems]
    assert sorted(map(str, said)) == ["job.cluster", "sweep.global_batch_size[0]", "sweep.gpus[0]", "sweep.model[0]"]


def test_too_many_combinations_are_counted_and_refused() -> None:
    text = SMALL.replace("[64, 128]", str(list(range(1, 5001))))
    with pytest.raises(InputError) as error:
        read(text)
    assert str(error.value) == (
        "sweep: the sweep has too many combinations (got 2 model x 4 gpus x 5,000 "
        "global_batch_size = 40,000, need at most 10,000). Try: shorter lists, or --limit "
        "40000."
    )


DOCS = Path(__file__).parents[3] / "docs"


def test_the_columns_are_those_of_the_tables() -> None:
    text = (DOCS / "reference" / "tables.md").read_text(encoding="utf-8")
    assert is_current("sweep"), "python -m tools generate sweep"
    assert "| `step_s` | s: a steady optimizer step |" in text


def test_its_example_is_a_sweep() -> None:
    text = (DOCS / "how-to" / "size-and-sweep.md").read_text(encoding="utf-8")
    example = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    found = read(example[1])
    assert f"{len(found.points)} plans of {found.combinations} combinations" in text


def test_every_field_of_a_job_but_its_training_may_be_swept() -> None:
    assert {"model", "cluster", "gpus", "pins", "pins.tp", "limits.memory_margin", "packing"} <= set(swept())
    assert not {"training", "schema"} & set(swept())


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
