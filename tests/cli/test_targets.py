"""`symconfig list targets` and the options that say which files are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.render import every_launcher, targets
from symconfig.render.files import File, Files, write
from tests.cli.support import Run
from tests.sample_plans import sample_plan


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan with a pipeline, which DeepSpeed cannot run with Transformers' models."""
    write(Files((File("plan.json", sample_plan(pp=2).to_json()),)), tmp_path / "plan")
    return tmp_path / "plan"


def test_every_target_and_launcher_says_what_it_does(run: Run) -> None:
    found = run.done("list targets --json").json()
    assert [item["name"] for item in found["targets"]] == list(targets())
    assert [item["name"] for item in found["launchers"]] == list(every_launcher())
    assert all(len(item["does"]) > 10 for kind in ("targets", "launchers") for item in found[kind])
    assert "carries" not in found["targets"][0]


def test_a_plan_is_carried_or_every_reason_is_said(run: Run, plan: Path) -> None:
    found = {item["name"]: item for item in run.done("list targets", plan, "--json").json()["targets"]}
    assert found["megatron"]["carries"]
    assert not found["deepspeed"]["carries"]
    assert found["deepspeed"]["another"]
    assert not found["slime"]["another"]
    assert any("PipelineModule" in reason for reason in found["deepspeed"]["reasons"])
    said = run.done("list targets", plan).out
    assert "PipelineModule" in said
    assert "another: symconfig replan PLAN.json --target T finds" in " ".join(said.split())
    assert "slurm" in said


def test_a_plan_is_made_for_a_target_and_again_for_one_more(run: Run, tmp_path: Path) -> None:
    job = "plan --model llama2-7b --cluster h100 --gpus 8 --global-batch-size 16"
    first, second = tmp_path / "first", tmp_path / "second"
    assert "for DeepSpeed 0.19.8 through llamafactory" in run(f"{job} --target llamafactory --out", first).out
    assert (first / "train.yaml").exists()
    said = run.done("replan --target megatron", first, "--out", second).out
    assert "target" in said
    assert "backend" in said
    assert (second / "megatron_args.txt").exists()
    run.done("verify --frozen", second)
