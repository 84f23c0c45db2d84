"""The contracts of the commands: what they print, where, and with which exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from symconfig.cli import main
from symconfig.errors import InfeasibleError, Problem
from symconfig.plans.plan import Plan
from tests.cli.support import JOB, Asked, Run, asked, replace_search, run
from tests.sample_plans import sample_plan

__all__ = ["asked", "run"]


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(sample_plan("llama2-13b").to_json(), encoding="utf-8")
    return path


# --- plan ---------------------------------------------------------------------------------------------------------


def test_plan_prints_the_ranked_table(run: Run, asked: Asked) -> None:
    outcome = run("plan", *JOB)
    assert outcome.code == 0
    assert "tokens/s/GPU" in outcome.out
    assert "Plan 2 is 5.0 % slower" in outcome.out  # `explain` has the table
    assert outcome.err == ""


def test_plan_json_is_the_contract_and_nothing_else(run: Run, asked: Asked, tmp_path: Path) -> None:
    outcome = run("plan", *JOB, "--json", "--out", tmp_path / "out")
    data = outcome.json()
    assert data["schema"] == "symconfig.plan/1"
    assert set(data["search"]) == {
        "candidates",
        "feasible",
        "seconds",
        "simulated",
        "fewest",
        "opened",
    }
    assert set(data["best"]["batch"]) == {"micro", "global", "num_microbatches", "seq_length"}
    assert set(data["best"]["parallel"]) == {"tp", "pp", "vpp", "cp", "ep", "etp", "dp"}
    assert "wrote" in outcome.err


def test_options_reach_the_search_as_the_job(run: Run, asked: Asked) -> None:
    words = (
        "--seq-length 2048 --backend deepspeed --task sft --precision fp16 --pin tp=2..8 "
        "--pin zero=1 --pin recompute=full --memory-margin 0.1 --expert-imbalance 1.5 --top 7"
    )
    code = run("plan", *JOB, *words.split()).code
    job = asked.job
    assert code == 0
    assert job is not None
    assert (job.model, job.cluster, job.gpus, job.global_batch_size) == ("llama2-13b", "a100-80gb", 64, 1024)
    assert (job.seq_length, job.backend, job.task, job.precision) == (2048, "deepspeed", "sft", "fp16")
    assert (job.limits.memory_margin, job.limits.expert_imbalance) == (0.1, 1.5)
    assert job.pins == {"tp": "2..8", "zero": "1", "recompute": "full"}
    assert asked.top == 7


def test_a_job_file_says_the_same_and_options_override_it(run: Run, asked: Asked, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: llama2-13b\ncluster: a100-80gb\ngpus: 64\nglobal_batch_size: 1024\n"
        "pins: {tp: 4, pp: 2}\nlimits: {memory_margin: 0.1}\ntraining: {lr: 1e-4}\n",
        encoding="utf-8",
    )
    assert run("plan", job, "--gpus", "128", "--pin", "tp=8", "--expert-imbalance", "2").code == 0
    assert asked.job is not None
    assert asked.job.gpus == 128
    assert asked.job.pins == {"tp": "8", "pp": "2"}
    assert (asked.job.limits.memory_margin, asked.job.limits.expert_imbalance) == (0.1, 2.0)
    assert asked.job.training.lr == 1e-4


def test_the_fields_that_every_run_sets_have_options(run: Run, asked: Asked) -> None:
    words = ["--save", "/s", "--load", "/l", "--tokenizer", "t", "--train-iters", "50", "--lr", "1e-5"]
    data = ["--data-path", "0.7", "web", "--data-path", "0.3", "code"]
    assert run("plan", *JOB, *words, *data).code == 0
    assert asked.job is not None
    training = asked.job.training
    assert (training.save, training.load, training.tokenizer_model) == ("/s", "/l", "t")
    assert (training.train_iters, training.lr) == (50, 1e-5)
    assert training.data_path == ("0.7", "web", "0.3", "code")
    assert training.blended


def test_paths_in_a_job_file_start_where_it_lies(
    run: Run, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    model = sample_plan("llama2-13b").model.model_dump_json(by_alias=True, exclude_unset=True)
    (folder / "mine.json").write_text(model, encoding="utf-8")
    (folder / "job.yaml").write_text(
        "model: mine.json\ncluster: a100-80gb\ngpus: 64\nglobal_batch_size: 64\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    assert run("plan", "jobs/job.yaml").code == 0
    monkeypatch.chdir(folder)
    assert run("plan", "job.yaml", "--model", "mine.json").code == 0
    monkeypatch.chdir(tmp_path)
    assert run("plan", "jobs/job.yaml", "--model", "mine.json").code == 2  # an option's path starts here


def test_out_holds_every_file(run: Run, asked: Asked, tmp_path: Path) -> None:
    for backend, expected in (("megatron", "megatron_args.txt"), ("deepspeed", "ds_config.json")):
        out = tmp_path / backend
        outcome = run("plan", *JOB, "--backend", backend, "--out", out)
        assert outcome.code == 0
        names = {path.name for path in out.rglob("*")}
        assert {"plan.json", "launch.sh", "sbatch.sh", "REPORT.md", expected} <= names
        assert expected in outcome.out


def test_the_same_job_twice_gives_the_same_bytes(run: Run, asked: Asked, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert run("plan", *JOB, "--out", tmp_path / name).code == 0
    for path in sorted((tmp_path / "one").rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_nothing_fits_is_exit_1_and_writes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def search(*args: Any, **kwargs: Any) -> Plan:
        raise InfeasibleError(Problem("nothing fits: the weights alone take 90 GiB", hint="128 GPUs"))

    replace_search(monkeypatch, search)
    outcome = run("plan", *JOB, "--out", tmp_path / "out")
    assert outcome.code == 1
    assert outcome.err == "error: nothing fits: the weights alone take 90 GiB. Try: 128 GPUs.\n"
    assert list(tmp_path.iterdir()) == []
    outcome = run("plan", *JOB, "--json")
    assert (outcome.code, outcome.json()["exit_code"]) == (1, 1)


# --- render, explain, import, verify, doctor ----------------------------------------------------------------------


def test_render_writes_the_target_of_the_plan(run: Run, plan_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = run("render", plan_file, "--out", out, "--json")
    assert outcome.code == 0
    assert outcome.json()["target"] == "megatron"
    assert sorted(outcome.json()["files"]) == sorted(
        str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("command", ["explain", "verify"])
def test_what_holds_no_plan_is_said_without_an_errno(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "file.txt").write_text("x", encoding="utf-8")
    nowhere, empty = run(command, tmp_path / "none"), run(command, tmp_path)
    assert (nowhere.code, empty.code) == (2, 2)
    assert "there is no such" in nowhere.err
    assert "there is no plan.json in this folder" in empty.err
    assert "Errno" not in nowhere.err + empty.err


def test_explain_json_names_the_runner_up(run: Run, plan_file: Path) -> None:
    data = run("explain", plan_file, "--json").json()
    assert data["schema"] == "symconfig.explain/2"
    assert data["binding"].startswith("memory of stage 0")
    assert data["runner_up"]["slower_by"] == "+5.0 %"


LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def test_import_gives_a_descriptor_that_plan_takes(run: Run, asked: Asked, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA_CONFIG), encoding="utf-8")
    descriptor = tmp_path / "mine.yaml"
    printed = run("import", config)
    assert printed.code == 0
    assert run("import", config, "--out", descriptor).code == 0
    assert descriptor.read_text(encoding="utf-8") == printed.out
    assert run("import", config, "--json").json()["num_key_value_heads"] == 2
    assert run("plan", "--model", descriptor, *JOB[2:]).code == 0
    by_yaml = asked.model
    assert run("plan", "--model", config, *JOB[2:]).code == 0
    assert by_yaml is not None
    assert asked.model is not None
    assert by_yaml.model_dump(exclude={"name", "source", "notes"}) == asked.model.model_dump(
        exclude={"name", "source", "notes"}
    )


def test_import_never_replaces_a_file_unasked(run: Run, tmp_path: Path) -> None:
    config, out = tmp_path / "config.json", tmp_path / "mine.yaml"
    config.write_text(json.dumps(LLAMA_CONFIG), encoding="utf-8")
    out.write_text("precious", encoding="utf-8")
    assert run("import", config, "--out", out).code == 2
    assert out.read_text(encoding="utf-8") == "precious"
    assert run("import", config, "--out", out, "--force").code == 0
    assert "hidden_size: 64" in out.read_text(encoding="utf-8")


def test_verify_answers_1_when_a_check_fails(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from symconfig.verify import checks

    found = [checks.Check("arguments", "passed", "all known", 0.1), checks.Check("parser", "skipped", "no torch", 0.0)]
    wanted: dict[str, Any] = {}
    monkeypatch.setattr(checks, "verify", lambda folder, **options: wanted.update(options) or found)
    outcome = run("verify", tmp_path, "--build")
    assert outcome.code == 0
    assert wanted["build"] is True
    assert "1 passed, 1 skipped" in outcome.out
    found.append(checks.Check("launch.sh", "failed", "SC2086", 0.2, (checks.Compared("layers", 8, 7, "count"),)))
    outcome = run("verify", tmp_path, "--json")
    assert outcome.code == 1
    assert outcome.json()["passed"] is False
    assert outcome.json()["checks"][2] == {
        "name": "launch.sh",
        "status": "failed",
        "detail": "SC2086",
        "seconds": 0.2,
        "compared": [{"what": "layers", "ours": 8, "real": 7, "unit": "count"}],
    }


def test_verify_needs_a_folder_with_a_plan(run: Run, tmp_path: Path) -> None:
    assert run("verify", tmp_path / "nowhere").code == 2
    assert run("verify", tmp_path).code == 2


def test_every_file_that_describes_a_command_is_in_the_list_of_commands() -> None:
    files = Path(main.__file__).parent.glob("*.py")
    commands = {path.stem for path in files if "\nDOES = " in path.read_text(encoding="utf-8")}
    assert commands == set(main.COMMANDS)


@pytest.mark.parametrize(
    ("word", "hint"),
    [("plna", "symconfig plan"), ("check", "symconfig verify --frozen"), ("xyzzy", "symconfig --help")],
)
def test_a_word_that_is_no_command_has_the_nearest_as_a_hint(run: Run, word: str, hint: str) -> None:
    ended = run(word, "out")
    assert ended.code == 2
    assert f"{word}: there is no such command. Try: {hint}." in ended.err


def test_a_command_that_is_named_is_loaded_alone() -> None:
    every = main.commands([])
    assert [vars(command)["__name__"] for command in every] == [f"symconfig.cli.{name}" for name in main.COMMANDS]
    assert main.commands(["--json", "plan"]) == every
    assert main.commands(["importing"]) == every
    for command in every:
        assert main.commands([main.name_of(command.__name__), "--help"]) == [command]
