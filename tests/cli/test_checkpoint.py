"""`symconfig checkpoint`: what a folder holds, and whether a plan loads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from symconfig.cli import main as cli
from tests.runs.checkpoint.folders import SAFETENSORS, torch_dist
from tests.sample_plans import sample_plan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return torch_dist(tmp_path / "run", inside=True)


def plan(tmp_path: Path, **degrees: int) -> str:
    path = tmp_path / "plan.json"
    path.write_text(sample_plan("llama2-13b", global_batch=128, **degrees).to_json())
    return str(path)


def test_a_folder_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["checkpoint", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "torch_dist:dp_reshardable, iteration 200" in told
    assert "core_v0.19.0" in told


def test_more_replicas_of_the_same_grid(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["checkpoint", str(folder), "--plan", plan(tmp_path, tp=2, pp=2, dp=8)]) == 0
    assert "Resharded on load: It loads" in capsys.readouterr().out


def test_another_grid_needs_a_conversion(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["checkpoint", str(folder), "--plan", plan(tmp_path, tp=4, pp=2, dp=8), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "symconfig.checkpoint/1"
    assert answer["checkpoint"]["degrees"]["tp"] == 2
    assert answer["loadable"]["verdict"] == "converted first"
    assert answer["loadable"]["otherwise"] == "weights only"
    assert "--dist-ckpt-optim-fully-reshardable" in answer["loadable"]["how"][0]["words"]


def test_another_model_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = torch_dist(tmp_path / "run", num_layers=32)
    assert cli.main(["checkpoint", str(folder), "--plan", plan(tmp_path, tp=2, pp=2, dp=4)]) == 1
    assert "num_hidden_layers 32 -> 40" in capsys.readouterr().out


def test_weights_of_a_hub(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(SAFETENSORS)
    for layers, code, said in ((40, 0, "AutoBridge.import_ckpt"), (32, 1, "num_hidden_layers 32 -> 40")):
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": layers}))
        assert cli.main(["checkpoint", str(folder), "--plan", plan(tmp_path, tp=2)]) == code
        assert said in capsys.readouterr().out


def test_all_that_is_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["checkpoint", str(tmp_path), "--old", str(tmp_path / "plan.json")]) == 2
    told = capsys.readouterr().err
    assert "is no checkpoint" in told
    assert "there is no such file" in told
    assert "--old" in told
