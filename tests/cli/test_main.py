"""The contracts of the commands: what they print, where, and with which exit code."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from symconfig.cli import main
from symconfig.errors import InfeasibleError, Problem
from symconfig.plans.plan import Plan
from symconfig.verify import checks
from tests.cli.support import JOB, LLAMA_CONFIG, Asked, Run, replace_search
from tests.sample_plans import sample_plan

OWN = {**LLAMA_CONFIG, "model_type": "own7", "auto_map": {"AutoModelForCausalLM": "modeling.Own"}}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_CONFIG), encoding="utf-8")
    return path


def test_plan_json_is_the_contract_and_nothing_else(run: Run, asked: Asked, tmp_path: Path) -> None:
    outcome = run("plan --json --out", tmp_path / "out", *JOB)
    data = outcome.json()
    assert data["schema"] == "symconfig.plan/1"
    assert set(data["search"]) == {
        "candidates", "feasible", "seconds", "simulated", "fewest", "opened", "best_score_s",
    }  # fmt: skip
    assert set(data["best"]["batch"]) == {"micro", "global", "num_microbatches", "seq_length"}
    assert set(data["best"]["parallel"]) == {"tp", "pp", "vpp", "cp", "ep", "etp", "dp"}
    assert "wrote" in outcome.err


def test_options_reach_the_search_as_the_job(run: Run, asked: Asked) -> None:
    run.done(
        "plan --seq-length 2048 --backend deepspeed --task sft --precision fp16 --pin tp=2..8 --pin zero=1 "
        "--pin recompute=full --memory-margin 0.1 --expert-imbalance 1.5 --top 7",
        *JOB,
    )
    job = asked.job
    assert (job.model, job.cluster, job.gpus, job.global_batch_size) == ("llama2-13b", "a100-80gb", 64, 1024)
    assert (job.seq_length, job.backend, job.task, job.precision) == (2048, "deepspeed", "sft", "fp16")
    assert (job.limits.memory_margin, job.limits.expert_imbalance) == (0.1, 1.5)
    assert job.pins == {"tp": "2..8", "zero": "1", "recompute": "full"}
    assert asked.top == 7
    words = "plan --save /s --load /l --tokenizer t --train-iters 50 --lr 1e-5 --data-path 0.7 web --data-path 0.3 code"
    run.done(words, *JOB)
    training = asked.job.training
    assert (training.save, training.load, training.tokenizer_model) == ("/s", "/l", "t")
    assert (training.train_iters, training.lr) == (50, 1e-5)
    assert training.data_path == ("0.7", "web", "0.3", "code")
    assert training.blended


def test_a_job_file_says_the_same_and_options_override_it(run: Run, asked: Asked, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: llama2-13b\ncluster: a100-80gb\ngpus: 64\nglobal_batch_size: 1024\n"
        "pins: {tp: 4, pp: 2}\nlimits: {memory_margin: 0.1}\ntraining: {lr: 1e-4}\n",
        encoding="utf-8",
    )
    run.done("plan --gpus 128 --pin tp=8 --expert-imbalance 2", job)
    assert asked.job.gpus == 128
    assert asked.job.pins == {"tp": "8", "pp": "2"}
    assert (asked.job.limits.memory_margin, asked.job.limits.expert_imbalance) == (0.1, 2.0)
    assert asked.job.training.lr == 1e-4


def test_paths_in_a_job_start_beside_it(
    run: Run, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    model = sample_plan("llama2-13b").model.model_dump_json(by_alias=True, exclude_unset=True)
    (folder / "mine.json").write_text(model, encoding="utf-8")
    text = "model: mine.json\ncluster: a100-80gb\ngpus: 64\nglobal_batch_size: 64\n"
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    run.done("plan jobs/job.yaml")
    run.refused("plan jobs/job.yaml --model mine.json")  # an option's path starts here
    monkeypatch.chdir(folder)
    run.done("plan job.yaml --model mine.json")


def test_nothing_fits_is_exit_1_and_writes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def search(*args: Any, **kwargs: Any) -> Plan:
        raise InfeasibleError(Problem("nothing fits: the weights alone take 90 GiB", hint="128 GPUs"))

    replace_search(monkeypatch, search)
    said = run.refused("plan --out", tmp_path / "out", *JOB, code=1)
    assert said == "error: nothing fits: the weights alone take 90 GiB. Try: 128 GPUs.\n"
    assert list(tmp_path.iterdir()) == []
    outcome = run("plan --json", *JOB)
    assert (outcome.code, outcome.json()["exit_code"]) == (1, 1)


def test_a_defect_is_one_line_and_its_own_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def search(*args: Any, **kwargs: Any) -> Plan:
        raise ZeroDivisionError("float division by zero")

    replace_search(monkeypatch, search)
    said = run.refused("plan --out", tmp_path / "out", *JOB, code=70)
    assert len(said.splitlines()) == 1
    assert "ZeroDivisionError" in said
    assert not (tmp_path / "out").exists()


def test_render_and_explain_say_what_they_have_done_as_json(run: Run, tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    plan.write_text(sample_plan("llama2-13b").to_json(), encoding="utf-8")
    data = run.done("render --json", plan, "--out", out).json()
    assert data["target"] == "megatron"
    assert sorted(data["files"]) == sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    data = run("explain --json", plan).json()
    assert data["schema"] == "symconfig.explain/2"
    assert data["binding"].startswith("memory of stage 0")
    assert data["runner_up"]["slower_by"] == "+5.0 %"


def test_import_gives_a_descriptor_that_plan_takes(run: Run, asked: Asked, config: Path, tmp_path: Path) -> None:
    descriptor = tmp_path / "mine.yaml"
    printed = run.done("import", config)
    run.done("import", config, "--out", descriptor)
    assert descriptor.read_text(encoding="utf-8") == printed.out
    assert run("import --json", config).json()["num_key_value_heads"] == 2
    found = []
    for model in (descriptor, config):
        run.done("plan --model", model, *JOB[2:])
        found.append(asked.model.model_dump(exclude={"name", "source", "notes"}))
    assert found[0] == found[1]
    descriptor.write_text("precious", encoding="utf-8")
    run.refused("import", config, "--out", descriptor)
    assert descriptor.read_text(encoding="utf-8") == "precious"
    run.done("import --force", config, "--out", descriptor)
    assert "hidden_size: 64" in descriptor.read_text(encoding="utf-8")


def test_a_file_with_code_of_its_own_is_read_as_one_of_a_family(run: Run, config: Path) -> None:
    config.write_text(json.dumps(OWN))
    made = run.done("import --like mistral --json", config).json()
    assert (made["model_type"], made["hidden_size"], made["num_key_value_heads"]) == ("mistral", 64, 2)
    assert "--like FAMILY" in run.refused("import", config)
    assert "Try: mistral" in run.refused("import --like mistrall", config)


def test_verify_answers_1_when_a_check_fails(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = [checks.Check("arguments", "passed", "all known", 0.1), checks.Check("parser", "skipped", "no torch", 0.0)]
    wanted: dict[str, Any] = {}
    monkeypatch.setattr(checks, "verify", lambda folder, **options: wanted.update(options) or found)
    assert "1 passed, 1 skipped" in run.done("verify --build", tmp_path).out
    assert wanted["build"] is True
    found.append(checks.Check("launch.sh", "failed", "SC2086", 0.2, (checks.Compared("layers", 8, 7, "count"),)))
    outcome = run("verify --json", tmp_path)
    assert (outcome.code, outcome.json()["passed"]) == (1, False)
    assert outcome.json()["checks"][2] == {
        "name": "launch.sh", "status": "failed", "detail": "SC2086", "seconds": 0.2,
        "compared": [{"what": "layers", "ours": 8, "real": 7, "unit": "count"}],
    }  # fmt: skip


def test_commands_are_those_of_the_files_and_one_that_is_named_is_loaded_alone() -> None:
    files = Path(main.__file__).parent.glob("*.py")
    holding = {path.stem for path in files if "\nCOMMANDS = " in path.read_text(encoding="utf-8")}
    assert holding == set(main.MODULES.values())
    every = main.commands([])
    assert [command.name for command in every] == list(main.MODULES)
    modules = [import_module(f"symconfig.cli.{name}") for name in holding]
    assert {command.name for module in modules for command in module.COMMANDS} == set(main.MODULES)
    assert main.commands(["--json", "plan"]) == every
    for command in every:
        assert main.commands([command.name, "--help"]) == [command]
