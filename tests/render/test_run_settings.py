"""What else a run is told of its job: monitors, timeouts, evaluation, the weights that it starts from."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from symconfig.descriptor.load import load_cluster, load_model
from symconfig.plans.plan import Plan
from symconfig.render import megatron, render, targets
from symconfig.render.accelerate import words
from symconfig.render.files import write
from symconfig.render.shared import fine_tuned, hf_weights
from tests.render.bash import bash, dry_run
from tests.sample_plans import learning_plan, sample_model, sample_plan
from tests.sample_rl import LEARNING

ASKED = {
    "wandb_project": "big runs", "wandb_name": "first", "tensorboard_dir": "tb", "distributed_timeout_minutes": 30,
    "eval_iters": 5, "eval_interval": 50, "manual_gc_interval": 20,
}  # fmt: skip


def plan_for(target: str, model: str = "llama2-13b", **training: Any) -> Plan:
    assumed = targets()[target].assumes
    if assumed["backend"] == "deepspeed":
        return sample_plan(model, backend="deepspeed", training=training)
    version = assumed.get("megatron_version")
    return sample_plan(model, "h100", version=version, tp=1, pp=1, dp=8, training=training)


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def test_megatron_logs_to_weights_and_biases_only_beside_tensorboard_and_with_a_folder() -> None:
    alone = megatron.arguments(plan_for("megatron", wandb_project="p"))
    assert option(alone, "--wandb-exp-name") == "llama2-13b"
    assert (option(alone, "--tensorboard-dir"), option(alone, "--wandb-save-dir")) == ("tensorboard", "wandb")
    saving = megatron.arguments(plan_for("megatron", wandb_project="p", save="/s/run/"))
    assert option(saving, "--tensorboard-dir") == "/s/run/tensorboard"
    assert option(saving, "--wandb-save-dir") == "/s/run/wandb"


def test_deepspeed_is_told_in_its_json_and_by_variables() -> None:
    files = render(plan_for("deepspeed", **ASKED), "deepspeed")
    config = json.loads(files["ds_config.json"])
    assert config["tensorboard"] == {"enabled": True, "output_path": "tb", "job_name": "first"}
    assert config["wandb"] == {"enabled": True, "project": "big runs"}
    assert not {"tensorboard", "wandb"} & set(json.loads(files["ds_config_hf.json"]))
    assert "tensorboard\nwandb\n" in files["requirements.txt"]
    assert " || export WANDB_NAME=first\n" in files["launch.sh"]
    assert " || export DEEPSPEED_TIMEOUT=30\n" in files["launch.sh"]


def test_the_words_of_a_trainer_are_taken_by_its_own_parser() -> None:
    """Its option for report_to takes one name, or all."""
    transformers = pytest.importorskip("transformers")
    for asked, found in (({"tensorboard_dir": "tb"}, ["tensorboard"]), (ASKED, None)):
        told = [word for word in words(plan_for("transformers", **asked)) if "bf16" not in word]
        parser = transformers.HfArgumentParser(transformers.TrainingArguments)
        (arguments,) = parser.parse_args_into_dataclasses(told)
        if found:
            assert arguments.report_to == found
        else:
            assert "--report_to=all" in told


@pytest.mark.parametrize("target", sorted(targets()))
def test_each_field_is_passed_on_or_named_as_not_passed_on(target: str) -> None:
    """No target drops a field in silence: it is in its files, or in what the report says of them."""
    source = targets()[target]
    model = "llama3.1-8b" if target == "llamafactory" else "qwen2.5-7b"
    values = {
        "wandb_project": "marked-project",
        "tensorboard_dir": "marked-folder",
        "distributed_timeout_minutes": 77,
        "manual_gc_interval": 7919,
        "eval_iters": 4241,
        "tokenizer_model": "marked-tokenizer",
        "data_path": ("marked-data",),
    }
    backend = source.assumes["backend"]
    options = {"tp": 1, "pp": 1, "dp": 8} if backend == "megatron" else {}
    if target in LEARNING:
        plan = learning_plan(values, backend, source.learns.away[0])
    else:
        plan = sample_plan(
            load_model(model),
            load_cluster("ascend-910b") if target == "mindspeed" else "h100",
            backend=backend,
            version=source.assumes.get("megatron_version"),
            training=values,
            **options,
        )
    files = render(plan, target)
    told = "".join(file.text for file in files if file.path not in ("plan.json", "REPORT.md"))
    marks = {**{name: str(value) for name, value in values.items()}, "data_path": "marked-data"}
    marks["distributed_timeout_minutes"] = "77"
    if target in (
        "transformers",
        "llamafactory",
        "axolotl",
        "ms-swift",
        "trl",
        "verl",
        "verl-fsdp",
        "ms-swift-deepspeed",
    ):
        marks["distributed_timeout_minutes"] = str(77 * 60)
    if target in ("transformers", "llamafactory", "axolotl", "trl", "ms-swift-deepspeed"):
        marks["eval_iters"] = "eval_strategy"
    for name, mark in marks.items():
        assert (mark in told) != (name in source.ignored_fields), name
        assert (f"training.{name}" in files["REPORT.md"]) == (name in source.ignored_fields), name


@given(st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30))
def test_any_project_arrives_as_it_is(project: str) -> None:
    files = render(plan_for("deepspeed", wandb_project=project), "deepspeed")
    (line,) = [line for line in files["launch.sh"].splitlines() if "export WANDB_PROJECT" in line]
    done = subprocess.run(
        ["bash", "-uc", f'{line}\nprintf %s "$WANDB_PROJECT"'],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    assert done.stdout.decode() == project


NOTHING_SAVED = "launch.sh: no checkpoint is written; to change that: "


@pytest.mark.parametrize(
    ("target", "arguments", "env", "told"),
    [
        ("megatron", (), {}, True),
        ("megatron", ("--save", "x"), {}, False),
        ("megatron", ("--save=x",), {}, False),
        ("megatron", (), {"NODE_RANK": "1"}, False),
        ("deepspeed", (), {}, True),
        ("deepspeed", (), {"SAVE": "x"}, False),
    ],
)
def test_a_run_without_checkpoints_says_so_when_it_starts(
    target: str, arguments: tuple[str, ...], env: dict[str, str], told: bool, tmp_path: Path
) -> None:
    write(render(plan_for(target), target), tmp_path / "out", False)
    (tmp_path / "pretrain_gpt.py").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "torchrun").write_text("#!/bin/sh\n", encoding="utf-8")
    (tmp_path / "bin" / "torchrun").chmod(0o755)
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SKIP_PREFLIGHT": "1", "MASTER_ADDR": "a"}
    done = bash(tmp_path / "out" / "launch.sh", *arguments, cwd=tmp_path, **path, **env)
    assert done.returncode == 0, done.stderr
    assert (NOTHING_SAVED in done.stderr.decode()) is told


def test_nsight_records_the_steps_that_megatron_marks(tmp_path: Path) -> None:
    command = dry_run(render(plan_for("megatron"), "megatron"), tmp_path, "launch.sh", PROFILE="nsys", PROFILE_END="14")
    assert command[:2] == ["nsys", "profile"]
    assert option(command, "--capture-range") == "cudaProfilerApi"
    assert option(command, "--output") == "profiles/node0"
    assert command[command.index("torchrun") :][:1] == ["torchrun"]
    assert command[-5:] == ["--profile", "--profile-step-start", "10", "--profile-step-end", "14"]


def test_each_process_of_a_launcher_of_processes_has_a_log_of_its_own(tmp_path: Path) -> None:
    files = render(plan_for("megatron"), "megatron")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "python3"
    program.write_text("#!/bin/sh\necho printed by $RANK\n", encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "pretrain_gpt.py").touch()
    write(files, tmp_path / "out", False)
    done = bash(
        tmp_path / "out" / "launch.sh",
        cwd=tmp_path,
        PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        SKIP_PREFLIGHT="1",
        PER_RANK="1",
        RANK="3",
        LOCAL_RANK="3",
        WORLD_SIZE="8",
        LOG_DIR="logs",
    )
    assert done.stdout.decode() == "printed by 3\n", done.stderr
    (log,) = (tmp_path / "logs").glob("rank3-*.log")
    assert log.read_text(encoding="utf-8") == "printed by 3\n"


OWN = "meta-llama/Llama-2-13b-hf"
# Stand-ins that say what they were started with; the one of python3 makes the checkpoint, unless it is told to fail.
_PYTHON = """#!/usr/bin/env bash
printf '%s\\n' "converts ${*: -2} with ${RANK-no} rank" >>"$SEEN"
[[ -z "${BROKEN:-}" ]] || exit 1
mkdir -p "${@: -1}" && touch "${@: -1}/latest_train_state.pt"
"""
_TORCHRUN = '#!/usr/bin/env bash\nprintf "%s\\n" trains >>"$SEEN"\n'


def tuned(backend: str = "deepspeed", task: str | None = "sft", weights: str | None = None, **fields: Any) -> Plan:
    plan = sample_plan(sample_model("llama2-13b", **fields), backend=backend, tp=1, pp=1, dp=64, version="core_v0.16.1")
    training = plan.job.training.model_copy(update={"hf_weights": weights})
    return replace(plan, job=plan.job.model_copy(update={"task": task, "training": training}))


def test_tuning_starts_from_the_model_s_own_weights_and_a_job_s_come_first() -> None:
    assert hf_weights(tuned()) == OWN
    assert hf_weights(tuned(weights="mine")) == "mine"
    assert hf_weights(tuned(huggingface_id=None)) is None
    assert hf_weights(tuned(task="pretrain")) is None
    assert not fine_tuned(tuned(task="pretrain"))
    assert fine_tuned(tuned(task="pretrain", weights="mine"))


@pytest.mark.parametrize(("task", "weights", "expected"), [
    ("sft", None, OWN), ("sft", "a b/it's", "'a b/it'\"'\"'s'"), ("pretrain", None, "''"), ("pretrain", "mine", "mine"),
])  # fmt: skip
def test_deepspeed_s_launch_begins_with_them(task: str, weights: str | None, expected: str) -> None:
    launch = render(tuned(task=task, weights=weights), "deepspeed")["launch.sh"]
    assert f"\nDEFAULT_MODEL={expected}\n" in launch


def test_llamafactory_and_transformers_are_told() -> None:
    whole = yaml.safe_load(render(tuned(task="pretrain"), "llamafactory")["train.yaml"])
    mine = yaml.safe_load(render(tuned(task="pretrain", weights="mine"), "llamafactory")["train.yaml"])
    assert (whole["model_name_or_path"], whole["train_from_scratch"]) == (OWN, True)
    assert mine["model_name_or_path"] == "mine"
    assert "train_from_scratch" not in mine
    assert "from_pretrained('mine')" in render(tuned(weights="mine"), "transformers")["REPORT.md"]
    lora = tuned(task="lora", weights="mine", adapter={"r": 8, "lora_alpha": 8.0, "target_modules": ["q_proj"]})
    assert json.loads(render(lora, "transformers")["adapter_config.json"])["base_model_name_or_path"] == "mine"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Bridge folder in out/, and stand-ins for python3 and torchrun in bin/."""
    write(render(tuned("megatron"), "bridge"), tmp_path / "out")
    (tmp_path / "bin").mkdir()
    for name, text in (("python3", _PYTHON), ("torchrun", _TORCHRUN)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def start(folder: Path, **env: str) -> tuple[subprocess.CompletedProcess[bytes], list[str]]:
    seen = folder / "seen"
    settings = {"SEEN": str(seen), "MASTER_ADDR": "node0", "SKIP_PREFLIGHT": "1", **env}
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    done = bash(folder / "out" / "launch.sh", cwd=folder, **settings, PATH=path)
    return done, seen.read_text().splitlines() if seen.exists() else []


def test_the_first_node_makes_the_checkpoint_once(folder: Path) -> None:
    done, seen = start(folder)
    assert done.returncode == 0, done.stderr.decode()
    assert seen == [f"converts {OWN} pretrained with no rank", "trains"]
    assert f"making pretrained of {OWN}, once" in done.stderr.decode()
    assert start(folder)[1][2:] == ["trains"]


def test_a_checkpoint_that_is_there_is_left_as_it_is(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "latest_checkpointed_iteration.txt").touch()
    assert start(folder, PRETRAINED_CHECKPOINT="mine")[1] == ["trains"]
