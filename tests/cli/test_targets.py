"""`symconfig list targets` and the options that say which files are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from symconfig.cli.main import main
from symconfig.render import every_launcher, targets
from symconfig.render.files import File, Files, write
from tests.sample_plans import sample_plan


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan with a pipeline, which DeepSpeed cannot run with Transformers' models."""
    write(Files((File("plan.json", sample_plan(pp=2).to_json()),)), tmp_path / "plan")
    return tmp_path / "plan"


def test_every_target_and_launcher_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "targets", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in found["targets"]] == list(targets())
    assert [item["name"] for item in found["launchers"]] == list(every_launcher())
    assert all(len(item["does"]) > 10 for kind in ("targets", "launchers") for item in found[kind])
    assert "carries" not in found["targets"][0]


def test_a_plan_is_carried_or_every_reason_is_said(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "targets", str(plan), "--json"]) == 0
    found = {item["name"]: item for item in json.loads(capsys.readouterr().out)["targets"]}
    assert found["megatron"]["carries"]
    assert not found["deepspeed"]["carries"]
    assert found["deepspeed"]["another"]
    assert not found["slime"]["another"]
    assert any("PipelineModule" in reason for reason in found["deepspeed"]["reasons"])
    assert main(["list", "targets", str(plan)]) == 0
    said = capsys.readouterr().out
    assert "PipelineModule" in said
    assert "another: symconfig replan PLAN.json --target T finds" in " ".join(said.split())
    assert "slurm" in said


JOB = ("--model", "llama2-7b", "--cluster", "h100", "--gpus", "8", "--global-batch-size", "16")


def test_a_plan_is_made_for_a_target_and_again_for_one_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["plan", *JOB, "--target", "llamafactory", "--out", str(first)]) == 0
    assert "for DeepSpeed 0.19.8 through llamafactory" in capsys.readouterr().out
    assert (first / "train.yaml").exists()
    assert main(["replan", str(first), "--target", "megatron", "--out", str(second)]) == 0
    said = capsys.readouterr().out
    assert "target" in said
    assert "backend" in said
    assert (second / "megatron_args.txt").exists()
    assert main(["verify", "--frozen", str(second)]) == 0
