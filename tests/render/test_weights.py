"""Where runs start from: Hugging Face weights in the files of every target that reads them, and refused by others."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from symconfig.plans.plan import Plan
from symconfig.render import render
from symconfig.render.files import write
from symconfig.render.shared import fine_tuned, hf_weights
from tests.render.bash import bash
from tests.sample_plans import sample_model, sample_plan

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
