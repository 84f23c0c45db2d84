"""Bad input at the command line: a sentence for each problem, all at once, exit 2, nothing written, no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from symconfig.plans.plan import Plan
from tests.cli.support import JOB, Asked, Run, asked, replace_search, run
from tests.cli.test_main import LLAMA_CONFIG
from tests.sample_plans import sample_plan

__all__ = ["asked", "run"]

GOOD_JOB = "model: llama2-13b\ncluster: a100-80gb\ngpus: 64\nglobal_batch_size: 1024\n"


def model_file(folder: Path, **changes: Any) -> Path:
    """A descriptor file with some fields changed."""
    data = json.loads(sample_plan("llama2-13b").model.model_dump_json(by_alias=True, exclude_unset=True))
    path = folder / "model.yaml"
    path.write_text(
        "".join(f"{name}: {json.dumps(value)}\n" for name, value in {**data, **changes}.items()), encoding="utf-8"
    )
    return path


# --- options ------------------------------------------------------------------------------------------------------


def test_every_missing_option_is_named_at_once(run: Run) -> None:
    outcome = run("plan")
    assert outcome.code == 2
    for option in ("--model", "--cluster", "--gpus", "--global-batch-size"):
        assert f"error: {option}: this option is missing" in outcome.err


def test_all_problems_of_a_command_come_together(run: Run, asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    words = (
        "--model llama2-13 --cluster a100 --gpus many --global-batch-size -1 --backend megatrn --pin tp --pin ttp=3 "
        "--top 0 --memory-margin 3"
    )
    outcome = run("plan", *words.split(), "--out", tmp_path / "out")
    assert outcome.code == 2
    lines = outcome.err.splitlines()
    options = [
        "--model",
        "--cluster",
        "--gpus",
        "--global-batch-size",
        "--backend",
        "--pin",
        "--top",
        "--memory-margin",
    ]
    for option in (*options, "--pin ttp", str(tmp_path / "out")):
        assert sum(line.startswith(f"error: {option}: ") for line in lines) == 1, option
    assert asked.calls == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "0"), "--gpus: "),
        (("--gpus", "-8"), "--gpus: "),
        (("--gpus", "8.5"), "--gpus: "),
        (("--gpus", "١٦"), "--gpus: "),
        (("--gpus", "9" * 5000), "--gpus: "),
        (("--global-batch-size", "0"), "--global-batch-size: "),
        (("--seq-length", "nan"), "--seq-length: "),
        (("--memory-margin", "nan"), "--memory-margin: "),
        (("--expert-imbalance", "inf"), "--expert-imbalance: "),
        (("--expert-imbalance", "0.5"), "--expert-imbalance: "),
        (("--task", "train"), "--task: "),
        (("--task", "grpo"), "--task: is an algorithm of task rl: a section rl of the job's file"),
        (("--task", "orpo"), "--task: is a loss of task dpo: a section preference of the job's file"),
        (("llama3.1-8b",), "llama3.1-8b: is a model of the zoo, and no file of a job. Try: --model llama3.1-8b."),
        (("--precision", "int4"), "--precision: "),
        (("--cluster", "a100-80g"), "Try: a100-80gb"),
        (("--cluster", ""), "--cluster: "),
        (("--model", "../../etc/passwd"), "error: "),
        (("--model", "\0"), "error: "),
        (("--top", "many"), "--top: "),
        (("--pin", "=8"), "--pin: "),
        (("--pin", "tp="), "--pin: "),
        (("--pin", "threads=8"), "need one of tp, pp, vpp"),
        (("--pin", "tp=0"), "--pin tp: "),
        (("--pin", "tp=8..2"), "--pin tp: "),
        (("--pin", "tp=-1"), "--pin tp: "),
        (("--pin", "tp=..", "--pin", "pp=x"), "--pin pp: "),
        (("--pin", "recompute=some"), "need none, selective, full"),
        (("--pin", "precision=int8"), "need one of bf16"),
        (("--pin", "optimizer_offload=2"), "a share from 0 to 1"),
        (("--gpsu", "8"), "unknown argument '--gpsu'. Try: --gpus"),
        (("--tp", "8"), "unknown argument '--tp'. Try: --pin tp="),
        (("--cp-comm=a2a",), "unknown argument '--cp-comm=a2a'. Try: --pin cp_comm=a2a"),
        (("--pp",), "unknown argument '--pp'. Try: --pin pp=VALUE"),
    ],
)
def test_an_option_that_is_wrong_is_named(run: Run, asked: Asked, words: tuple[str, ...], said: str) -> None:
    outcome = run("plan", *JOB, *words)
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.out == ""
    assert len(outcome.err) < 2000
    assert asked.calls == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan --backend Megatorn", "--backend: Try: megatron"),
        ("plan --task SFT", "--task: Try: sft"),
        ("plan --precision fp4", "--precision: Try: nvfp4"),
        ("plan --optimizer Muno", "--optimizer: Try: muon"),
        ("plan --pin tensor=2", "--pin tensor: cannot be pinned, need tp"),
        ("plan --pin recompute=fulll", "--pin recompute: Try: full"),
        ("plan --pin dispatcher=deep", "--pin dispatcher: Try: deepep"),
        ("plan --set netwrok=4x200Gb/s", "--set netwrok: Try: network"),
        ("plan --target megatorn", "--target: Try: megatron"),
        ("plan --launcher slrum", "--launcher: Try: slurm"),
        ("plan --launcher slurm:partion=big", "slurm:partion: Try: partition"),
        ("plan --micro-batch-size 2", "--micro-batch-size Try: --pin mbs="),
        ("plan --tensor-model-parallel-size=4", "--tensor-model-parallel-size Try: --pin tp=4"),
        ("plan --global_batch_size 8", "--global_batch_size Try: --global-batch-size"),
        ("audit docs/examples/train_13b.sh --model llama2-77b", "--model: Try: llama2-7b"),
        ("audit docs/examples/train_13b.sh --megatron-version 18.2", "--megatron-version: Try: core_v0.18.2"),
        ("list Model", "KIND: Try: models"),
        ("list rules tp-over-node", "NAME: Try: "),
        ("list recipes --task pretrian", "--task: Try: pretrain"),
        ("completion bsh", "shell: Try: bash"),
    ],
)
def test_a_wrong_value_has_the_nearest_right_ones(
    run: Run, asked: Asked, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    command, *rest = words.split()
    ended = run(command, *(JOB if command == "plan" else ()), *rest)
    assert ended.code == 2
    told = " ".join(ended.err.split())
    assert told.count("error: ") == 1
    for part in said.partition(" Try: ")[::2]:
        assert part in told


@pytest.mark.parametrize(
    "words",
    [
        ("plann",),
        ("plan", "--model"),
        ("render",),
        ("render", "x.json", "--print"),
        ("verify",),
        ("explain",),
        ("import",),
        ("doctor", "--fix"),
    ],
)
def test_a_malformed_command_is_one_line_and_exit_2(run: Run, words: tuple[str, ...]) -> None:
    outcome = run(*words)
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1


def test_with_json_standard_output_holds_json_on_errors_too(run: Run) -> None:
    outcome = run("plan", "--json", "--model", "nope")
    assert outcome.code == 2
    assert outcome.json()["schema"] == "symconfig.error/1"
    assert len(outcome.json()["problems"]) == len(outcome.err.splitlines())


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD_JOB + "gpu: 8\n", ":5:1: gpu: unknown field. Try: gpus."),
        (GOOD_JOB + "gpus: 8\n", ":5:1: gpus: duplicate key, first on line 3."),
        (GOOD_JOB.replace("64", "sixty-four"), ":3:7: gpus: wrong value (got"),
        (GOOD_JOB.replace("64", "-64"), ":3:7: gpus: "),
        (GOOD_JOB.replace("1024", "0"), ":4:20: global_batch_size: out of range (got 0, need > 0)."),
        (GOOD_JOB.replace("1024", "1024.0"), ":4:20: global_batch_size: "),
        (GOOD_JOB + "pins: {tpp: 4}\n", "cannot be pinned"),
        (GOOD_JOB + "limits: {memory_margin: 1.5}\n", "limits.memory_margin: "),
        ("", "the file is empty"),
        ("- 1\n", "`name: value`"),
        ("model: [\n", "this is not YAML"),
        ("a: &x 1\nb: *x\n", "anchors are not allowed"),
        ("model: !!python/object/apply:os.system ['true']\n", "tags are not allowed"),
    ],
)
def test_a_job_file_that_is_wrong_is_told_where(run: Run, asked: Asked, tmp_path: Path, text: str, said: str) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(text, encoding="utf-8")
    outcome = run("plan", job)
    assert outcome.code == 2
    assert said in outcome.err
    assert str(job) in outcome.err
    assert asked.calls == 0


def test_all_problems_of_a_file_come_at_once(run: Run, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: llama2-13b\ncluster: a100-80gb\ngpus: 0\nglobal_batch_size: x\nfoo: 1\n", encoding="utf-8")
    outcome = run("plan", job)
    assert outcome.code == 2
    assert [line.split(": ")[2] for line in outcome.err.splitlines()] == ["gpus", "global_batch_size", "foo"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_key_value_heads": 7}, "not divisible by num_key_value_heads 7"),
        ({"hidden_size": 0}, "hidden_size: out of range (got 0"),
        ({"num_hidden_layers": -4}, "num_hidden_layers: out of range (got -4"),
        ({"vocab_size": "32k"}, "vocab_size: wrong value (got"),
        ({"hiden_size": 5120}, "hiden_size: unknown field. Try: hidden_size"),
        ({"norm_eps": None}, "norm_eps: wrong value (got null"),
    ],
)
def test_a_model_that_is_wrong_is_told_where(
    run: Run, asked: Asked, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = model_file(tmp_path, **changes)
    outcome = run("plan", "--model", path, *JOB[2:])
    assert outcome.code == 2
    assert said in outcome.err
    assert f"{path}:" in outcome.err
    assert asked.calls == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps(LLAMA_CONFIG)[:100], "cut off"),
        ("[" * 10_000 + "]" * 10_000, "nested too deeply"),
        ('{"a":' * 10_000 + "1" + "}" * 10_000, "nested too deeply"),
        (json.dumps({**LLAMA_CONFIG, "rope_theta": float("nan")}), "not a finite number"),
        (json.dumps({**LLAMA_CONFIG, "hidden_size": float("inf")}), "not a finite number"),
        (json.dumps({**LLAMA_CONFIG, "num_key_value_heads": 3}), "divisible"),
        (json.dumps({**LLAMA_CONFIG, "hidden_size": -64}), "hidden_size"),
        ("", "empty"),
        ("null", "error: "),
        ("\ufeff{}", "error: "),
    ],
)
@pytest.mark.parametrize("command", ["import", "plan"])
def test_a_config_that_cannot_be_right_is_refused(
    run: Run, asked: Asked, tmp_path: Path, text: str, said: str, command: str
) -> None:
    config = tmp_path / "config.json"
    config.write_text(text, encoding="utf-8")
    words = ("import", config) if command == "import" else ("plan", "--model", config, *JOB[2:])
    outcome = run(*words)
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.out == ""
    assert len(outcome.err) < 2000
    assert asked.calls == 0


def test_a_config_of_100_megabytes_is_refused_unread(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    with config.open("wb") as stream:
        stream.write(b'{"model_type": "llama"')
        stream.truncate(100_000_000)
    outcome = run("import", config)
    assert outcome.code == 2
    assert "too large" in outcome.err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"schema": "symconfig.plan/9"}',
        '{"schema": "symconfig.plan/1"}',
        '{"schema": "symconfig.plan/1", "inputs": 3}',
        "[" * 100_000,
        "\x00",
    ],
)
def test_a_plan_that_is_none_is_refused(run: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    assert run("explain", path).code == 2
    assert run("render", path, "--out", tmp_path / "out").code == 2
    assert not (tmp_path / "out").exists()


# --- the output folder --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["empty", "full", "file", "link"])
def test_a_place_that_is_taken_is_left_alone(run: Run, asked: Asked, tmp_path: Path, kind: str) -> None:
    out, precious = tmp_path / "out", tmp_path / "elsewhere"
    precious.mkdir()
    if kind == "file":
        out.write_text("precious", encoding="utf-8")
    elif kind == "link":
        out.symlink_to(precious)
    else:
        out.mkdir()
        if kind == "full":
            (out / "launch.sh").write_text("precious", encoding="utf-8")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    outcome = run("plan", *JOB, "--out", out)
    assert outcome.code == 2
    assert str(out) in outcome.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert asked.calls == 0  # said before the search, not after it


def test_a_folder_that_cannot_be_made_leaves_nothing(run: Run, asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    outcome = run("plan", *JOB, "--out", tmp_path / "file" / "out")
    assert outcome.code == 2
    assert "cannot be made below a file" in outcome.err
    assert asked.calls == 0  # said before the search, not after it
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_job_where_a_plan_is_needed_is_named_as_one(run: Run, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: llama2-7b\n", encoding="utf-8")
    outcome = run("explain", job)
    assert outcome.code == 2
    assert f"Try: symconfig plan {job} --out DIR" in outcome.err


def test_a_folder_is_no_cluster(run: Run, tmp_path: Path) -> None:
    outcome = run("plan", "--model", "llama2-7b", "--cluster", tmp_path, "--gpus", 8, "--global-batch-size", 8)
    assert outcome.code == 2
    assert outcome.err == f"error: {tmp_path}: this is a folder, a cluster is a file.\n"


# --- what goes wrong inside ---------------------------------------------------------------------------------------


def test_a_defect_is_one_line_and_its_own_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def search(*args: Any, **kwargs: Any) -> Plan:
        raise ZeroDivisionError("float division by zero")

    replace_search(monkeypatch, search)
    outcome = run("plan", *JOB, "--out", tmp_path / "out")
    assert outcome.code == 70
    assert len(outcome.err.splitlines()) == 1
    assert "ZeroDivisionError" in outcome.err
    assert not (tmp_path / "out").exists()


def test_hostile_names_reach_the_terminal_as_text(run: Run, tmp_path: Path) -> None:
    outcome = run(
        "plan",
        "--model",
        "$(reboot)\x1b[2J",
        "--cluster",
        '"; rm -rf ~',
        "--gpus",
        "\x1b[31m8",
        "--global-batch-size",
        "`id`",
        "--out",
        tmp_path / "out",
    )
    assert outcome.code == 2
    assert "\x1b" not in outcome.err
    assert "$(reboot)" in outcome.err


def test_an_unknown_name_and_a_wrong_pin_in_a_job_file_have_their_line(run: Run, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    text = "model: llama2-7b\ncluster: h1000\ngpus: 8\nglobal_batch_size: 8\npins: {tp: 3x}\n"
    job.write_text(text, encoding="utf-8")
    outcome = run("plan", job)
    assert outcome.code == 2
    assert f"{job}:2:10: cluster: unknown cluster" in outcome.err
    assert f"{job}:5:12: pins.tp: is not a value" in outcome.err
    assert "--cluster: unknown cluster" in run("plan", job, "--cluster", "h10").err
